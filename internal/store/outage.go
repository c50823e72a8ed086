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

	"github.com/trapeze-run/trapeze/internal/wait"
)

// outage keeps an outage of the database from making every request wait for connections that cannot be opened. When attempts to connect
// have failed for half a second, only one attempt is made at a time. A caller that needs a connection meanwhile gets the latest error at
// once. Heartbeats always try.
type outage struct {
	mu      sync.Mutex
	latest  error     // error of the latest attempt; nil: it succeeded
	since   time.Time // the first failed attempt since the last successful one
	trying  bool
	attempt time.Time // end of the latest attempt

	full   error // error of the latest attempt for which the server had no connection left
	fullAt time.Time
}

// outageAfter is how long attempts to connect must fail before this counts as an outage, because a single connection may be reset while it
// is opened.
const outageAfter = 500 * time.Millisecond

// attemptsApart is the minimum time between two attempts to connect during an outage.
const attemptsApart = 50 * time.Millisecond

// unreachable means that an attempt to connect took longer than the statement's timeout: nothing was sent.
type unreachable struct{ err error }

func (u *unreachable) Error() string {
	return "the database was not reached in time: " + u.err.Error()
}

// try runs do, which needs a connection, unless it would only wait for another failure. idle reports that an open connection is free,
// opening that one is being opened.
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
	if errors.Is(err, context.DeadlineExceeded) && opening() {
		refused, err = true, &unreachable{err}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if during {
		o.trying = false
	}
	if full(err) && time.Since(o.fullAt) > fullFor {
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

// attempt runs do, which uses a connection of the store's pool. If the server has none left, do waits for one of the pool.
func (db *Database) attempt(ctx context.Context, do func() error) error {
	for backoff := (wait.Backoff{Most: 100 * time.Millisecond}); ; {
		err := db.connections.outage.try(db.steady,
			func() bool { return db.pool.Stat().IdleConns() > 0 },
			func() bool { return db.pool.Stat().ConstructingConns() > 0 }, do)
		if db.steady {
			db.connections.beaten(err == nil)
		}
		if full(err) && db.pool.Stat().IdleConns()+db.pool.Stat().AcquiredConns() > 0 && backoff.Wait(ctx) {
			continue
		}
		return db.explain(err)
	}
}

// full reports whether err means that the server has no connection left.
func full(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == tooMany
}

// fullFor is how long a server that had no connection left is not asked for another.
const fullFor = 100 * time.Millisecond

// spare keeps a pool from asking a server that recently had no connection left. Otherwise statements that wait for a connection of the pool
// would ask all the time.
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

// tooMany is the SQLSTATE for a server without a free connection: too_many_connections.
const tooMany = "53300"

// explain adds a remedy to an error, if one is known.
func (db *Database) explain(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return err
	case pg.Code == "3F000", pg.Code == "42P01" && strings.Contains(pg.Message, `"`+db.schema+`.lane_kinds"`): // the first table that a submission reads
		return fmt.Errorf("schema %q has no tables: call migrate.Up, or run `trapeze migrate up`: %w", db.schema, err)
	case pg.Code == "42P01" && strings.Contains(pg.Message, `"`+db.schema+"."):
		return fmt.Errorf("schema %q lacks a table that this program needs: call migrate.Up, or run `trapeze migrate up`, of this version: %w", db.schema, err)
	case pg.Code == "08P01" && strings.Contains(pg.Message, "unsupported startup parameter"):
		return fmt.Errorf("a pooler between this pod and PostgreSQL takes no settings: set Options.BehindPooler or DirectURL "+
			"(TRAPEZE_DATABASE_DIRECT_URL): %w", err)
	}
	return ExplainTooMany(err, db.connections.own, db.connections.host)
}

// ExplainTooMany says with the error of a server that is full how many connections a pod takes: of its own, and in the
// host's pool. Other errors come back as they are.
func ExplainTooMany(err error, own int, host *pgxpool.Pool) error {
	if !full(err) {
		return err
	}
	most := int(host.Config().MaxConns)
	return fmt.Errorf("the database server has no connection left: a pod opens up to %d, %d of its own and %d in the host's pool; "+
		"lower pool_max_conns, run fewer pods, put a pooler in between or raise max_connections: %w", own+most, own, most, err)
}
