package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// outage keeps requests from waiting for connections that cannot be opened while the database is down. Once attempts to connect have been
// failing for half a second, only one attempt runs at a time. Meanwhile, a caller that needs a new connection gets the latest error without
// waiting. Heartbeats always try to connect.
type outage struct {
	mu      sync.Mutex
	latest  error     // error of the latest attempt; nil if it succeeded
	since   time.Time // first failed attempt since the last successful one
	trying  bool
	attempt time.Time // end of the latest attempt

	full   error // latest error from a server that had no free connections
	fullAt time.Time
}

// outageAfter is the time for which attempts to connect must have been failing before an outage is declared. It is not zero, because an
// individual connection can be reset while it is being opened.
const outageAfter = 500 * time.Millisecond

// attemptsApart is the minimum interval between two attempts to connect during an outage.
const attemptsApart = 50 * time.Millisecond

// try runs do, which needs a connection. During an outage, try instead returns the latest error, unless a connection is free or another
// attempt to connect is due. idle reports whether an open connection is free, and opening reports whether one is being opened.
func (o *outage) try(always bool, idle, opening func() bool, do func() error) error {
	o.mu.Lock()
	during := o.latest != nil && time.Since(o.since) >= outageAfter && !always
	if during && (o.trying || time.Since(o.attempt) < attemptsApart) && !idle() {
		defer o.mu.Unlock()
		return o.latest
	}
	if during {
		o.trying = true
	}
	o.mu.Unlock()
	err := do()
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	if Undone(err) && errors.Is(err, context.DeadlineExceeded) && opening() {
		refused = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if during {
		o.trying = false
	}
	if Full(err) && time.Since(o.fullAt) > fullFor {
		o.full, o.fullAt = err, time.Now()
	}
	switch {
	case refused:
		if o.attempt = time.Now(); o.latest == nil {
			o.since = o.attempt
		}
		o.latest = err
	case err == nil:
		o.latest = nil
	}
	return err
}

// attempt runs do, which uses a connection from the store's pool. If the server has no free connection, it waits for one that the pool has
// already opened.
func (db *Database) attempt(ctx context.Context, do func() error) error {
	for backoff := (routine.Backoff{Most: 100 * time.Millisecond}); ; {
		err := db.connections.outage.try(db.steady,
			func() bool { return db.pool.Stat().IdleConns() > 0 },
			func() bool { return db.pool.Stat().ConstructingConns() > 0 }, do)
		if db.steady {
			db.connections.recordHeartbeat(err == nil)
		}
		if Full(err) && db.pool.Stat().IdleConns()+db.pool.Stat().AcquiredConns() > 0 && backoff.Wait(ctx) {
			continue
		}
		return because(ctx, db.Explain(err))
	}
}

// Full reports whether err means that the server has no free connection.
func Full(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == tooMany
}

// fullFor is the time for which no new connections are requested after the server has reported that it had none free.
const fullFor = 100 * time.Millisecond

// spare keeps a pool from requesting connections if the server recently had none free. Otherwise, statements that wait for a connection
// from the pool would keep requesting new ones.
func (o *outage) spare(config *pgxpool.Config) {
	before := config.BeforeConnect
	config.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) error {
		o.mu.Lock()
		refused, at := o.full, o.fullAt
		o.mu.Unlock()
		switch {
		case refused != nil && time.Since(at) < fullFor:
			return refused
		case before != nil:
			return before(ctx, conn)
		}
		return nil
	}
}

// tooMany is the SQLSTATE too_many_connections, which a server without a free connection returns.
const tooMany = "53300"

// Explain adds advice to errors that have a known remedy.
func (db *Database) Explain(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return err
	case pg.Code == "3F000", pg.Code == "42P01" && strings.Contains(pg.Message, `"`+db.schema+`.lane_kinds"`): // lane_kinds is the first table that a submission reads
		return fmt.Errorf("schema %q has no tables: call migrate.Up, or run `trapeze migrate up`: %w", db.schema, err)
	case pg.Code == "42P01" && strings.Contains(pg.Message, `"`+db.schema+"."):
		return fmt.Errorf("schema %q lacks a table that this program needs: call migrate.Up, or run `trapeze migrate up` of the same version: %w", db.schema, err)
	case pg.Code == lockTimeout:
		return fmt.Errorf("the statement waited too long for another session's lock and had no effect; `trapeze doctor` names the session: %w", err)
	case pg.Code == "08P01" && strings.Contains(pg.Message, "unsupported startup parameter"):
		return fmt.Errorf("a pooler between this pod and PostgreSQL accepts no settings: set Options.BehindPooler or DirectURL "+
			"(TRAPEZE_DATABASE_DIRECT_URL): %w", err)
	}
	return ExplainTooMany(err, db.connections.own, db.connections.host)
}

// FullRemedy describes how to get free connections on a full server.
const FullRemedy = "lower pool_max_conns, run fewer pods, put a pooler in between or raise max_connections"

// ExplainTooMany extends the error from a full server with the number of connections that the pod uses, in its own pools and in the host's
// pool. It returns other errors unchanged.
func ExplainTooMany(err error, own int, host *pgxpool.Pool) error {
	if !Full(err) {
		return err
	}
	most := int(host.Config().MaxConns)
	return fmt.Errorf("the database server has no connection left: a pod opens up to %d, %d of its own and %d in the host's pool; %s: %w",
		own+most, own, most, FullRemedy, err)
}
