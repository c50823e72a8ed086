package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// A stale connection leads to a server that accepts no writes any more: a former primary that stayed up as a standby, or a
// standby that an address led to for a while. It is healthy in every other way, and a pool would keep it. A server reports it
// as 25006 (read_only_sql_transaction) with the next write.
//
// Each connection of a store's pools is checked when it is opened, closed when a write on it fails with 25006, and replaced
// after connectionLife. The first 25006 also resets the other pools of the process, since their connections lead to the same
// address.

// readOnly is the SQLSTATE of a write that the server or the transaction does not allow.
const readOnly = "25006"

const (
	// connectionLife is how long a connection is used, with connectionJitter on top at most.
	connectionLife   = 10 * time.Minute
	connectionJitter = 2 * time.Minute
	// resetsApart is the least time between two resets of all pools.
	resetsApart = time.Second
)

// ReadOnlyServer reports whether err says that the servers which answered accept no writes.
func ReadOnlyServer(err error) bool { return errors.Is(err, dburl.ErrReadOnly) || stale(err) }

// stale reports whether a statement failed because it may not write. Nothing was done.
func stale(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == readOnly
}

// connections is what the pools of a store and of its clones share.
type connections struct {
	outage outage
	host   *pgxpool.Pool
	own    int                                          // how many a pod opens beside those of host
	before func(context.Context, *pgx.ConnConfig) error // the hook of host, with which heartbeats connect

	mu      sync.Mutex
	pools   map[*pgxpool.Pool]bool // true: reset with the others
	reset   time.Time              // latest
	resets  int
	failing bool            // of heartbeats
	checked time.Time       // latest end of next
	next    context.Context // ended by the next reset or check
	end     context.CancelFunc
	closed  wait.Signal // takes one hint that a connection was closed
}

func newConnections(host *pgxpool.Pool, own int) *connections {
	c := &connections{pools: map[*pgxpool.Pool]bool{}, host: host, own: own, closed: wait.NewSignal()}
	c.next, c.end = context.WithCancel(context.Background())
	return c
}

func (c *connections) add(pool *pgxpool.Pool, resets bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pools[pool] = resets
}

func (c *connections) remove(pool *pgxpool.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pools, pool)
}

// guard configures a pool so that it keeps no stale connection.
func (c *connections) guard(config *pgxpool.Config, pooled bool) {
	dburl.RequireWrites(config.ConnConfig, pooled)
	allows := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == readOnly {
			c.resetAll()
			return false // closes the connection
		}
		return allows == nil || allows(conn, err)
	}
	if config.MaxConnLifetime <= 0 || config.MaxConnLifetime > connectionLife {
		config.MaxConnLifetime, config.MaxConnLifetimeJitter = connectionLife, connectionJitter
	}
	closes := config.BeforeClose
	config.BeforeClose = func(conn *pgx.Conn) {
		if closes != nil {
			closes(conn)
		}
		c.closed.Set()
	}
}

// resetAll has the pools open new connections, at most once every resetsApart.
func (c *connections) resetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.reset) < resetsApart {
		return
	}
	c.reset, c.checked = time.Now(), time.Now()
	c.resets++
	for pool, resets := range c.pools {
		if resets {
			pool.Reset()
		}
	}
	c.end()
	c.next, c.end = context.WithCancel(context.Background())
}

// beaten has the owners of other connections check them when a heartbeat has failed, and when one succeeds again.
func (c *connections) beaten(well bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if well && !c.failing || !well && time.Since(c.checked) < resetsApart {
		return
	}
	c.failing = !well
	c.checked = time.Now()
	c.end()
	c.next, c.end = context.WithCancel(context.Background())
}

// UntilReset returns a context that ends when the pools are reset next, or a heartbeat fails. The owner of another connection to the same address
// checks it then.
func (db *Database) UntilReset() context.Context {
	db.connections.mu.Lock()
	defer db.connections.mu.Unlock()
	return db.connections.next
}

// Resets returns how often the pools have been reset.
func (db *Database) Resets() int {
	db.connections.mu.Lock()
	defer db.connections.mu.Unlock()
	return db.connections.resets
}

// Closed returns a channel with a hint that connections of the pools were closed, for one reader.
func (db *Database) Closed() <-chan struct{} { return db.connections.closed }

// accepts is the condition that the server of a session accepts writes.
const accepts = `not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'`

const acceptsWritesSQL = `select ` + accepts

// CheckWrites returns an error when the server of an open connection accepts no writes, or does not answer.
func (db *Database) CheckWrites(ctx context.Context, conn *pgx.Conn) error {
	var accepts bool
	if err := conn.QueryRow(ctx, acceptsWritesSQL).Scan(&accepts); err != nil {
		return err
	}
	if !accepts {
		return dburl.ErrReadOnly
	}
	return nil
}

// CloseStale closes a connection of the host's on which a statement of ours failed with 25006, and reports whether it did.
// A transaction that its owner made read-only may fail so as well: its connection stays. ours says that we began the
// transaction, which was never read-only then.
func CloseStale(conn *pgx.Conn, err error, ours bool) bool {
	if !stale(err) || conn == nil {
		return false
	}
	server := conn.PgConn()
	if !ours && server.ParameterStatus("in_hot_standby") != "on" && server.ParameterStatus("default_transaction_read_only") != "on" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	return true
}
