package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/routine"
)

// renewal replaces connections in a pool that must never be without one. It opens a new connection before it closes the old one. A pgxpool
// would close the expired connection first. If the server was full or could not be reached at that moment, the pod would then lose its
// lease.
type renewal struct {
	life time.Duration
	pool *pgxpool.Pool

	mu      sync.Mutex
	opening bool
	cutoff  time.Time // connections opened before this time are closed
	retry   time.Time // earliest time of the next attempt
}

// openedAt is the key under which a connection stores its opening time.
const openedAt = "trapeze opened"

// Steady returns a clone of s for heartbeats. Like a clone from [Store.Beside], it has a separate pool. That pool is not reset together
// with the others, and its connections are replaced as [renewal] describes.
func (s *Store) Steady(ctx context.Context, connections int) (*Store, error) {
	config := s.pool.Config()
	config.MaxConns = int4(connections)
	r := &renewal{life: config.MaxConnLifetime}
	config.MaxConnLifetime = 0
	config.BeforeConnect = s.connections.before
	after, prepare := config.AfterConnect, config.PrepareConn
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[openedAt] = time.Now()
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if !r.keep(conn) {
			return false, nil
		}
		if prepare != nil {
			return prepare(ctx, conn)
		}
		return true, nil
	}
	clone, err := s.clone(ctx, config, true)
	if err != nil {
		return nil, fmt.Errorf("open the pool of the heartbeats: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool = clone.pool
	return clone, nil
}

// lateFor limits the time for which a statement on a steady pool may continue after its deadline. After that, its connection is considered
// dead and is closed.
const lateFor = 30 * time.Second

// runDetached runs do. On a steady pool, it returns as soon as ctx ends, while do continues. If ctx were passed to pgx, pgx would close the
// connection when ctx ends, and a full server would not accept a new one.
func runDetached[T any](ctx context.Context, db *Database, do func(context.Context) (T, error)) (T, error) {
	if !db.steady {
		return do(ctx)
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	longer, cancel := routine.Linger(ctx, lateFor)
	stop := context.AfterFunc(db.closing, cancel)
	go func() {
		defer cancel()
		defer stop()
		value, err := do(longer)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// keep reports whether to keep a connection that is about to be used. Once the connection has reached the end of its lifetime, keep starts
// to open a replacement.
func (r *renewal) keep(conn *pgx.Conn) bool {
	opened, _ := conn.PgConn().CustomData()[openedAt].(time.Time)
	r.mu.Lock()
	defer r.mu.Unlock()
	if opened.Before(r.cutoff) {
		return false
	}
	if now := time.Now(); now.Sub(opened) > r.life && !r.opening && now.After(r.retry) {
		r.opening, r.retry = true, now.Add(r.life/20)
		go r.open() // the pool opens a new connection, because conn is in use and no other exists
	}
	return true
}

func (r *renewal) open() {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	conn, err := r.pool.Acquire(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opening = false
	if err != nil {
		return // the old connection stays in use
	}
	defer conn.Release()
	if opened, _ := conn.Conn().PgConn().CustomData()[openedAt].(time.Time); time.Since(opened) <= r.life {
		r.cutoff = opened
	}
}

// Warm opens connections in the store's own pool, in parallel, and makes PostgreSQL plan the hot statements on each of them by executing
// the statements without touching any row. Otherwise, the first claim on a connection takes ten times as long as the second. Behind a
// pooler, Warm does nothing, because no plan would be kept.
func (db *Database) Warm(ctx context.Context, connections int) error {
	if db.pooled {
		return nil
	}
	ctx, cancel := db.Bounded(ctx)
	defer cancel()
	errs := make(chan error, connections)
	for range connections {
		go func() { errs <- db.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return db.plan(ctx, c) }) }()
	}
	var failed error
	for range connections {
		if err := <-errs; err != nil {
			failed = fmt.Errorf("warm up: %w", err)
		}
	}
	return failed
}

// plan executes each hot statement without touching any row.
func (db *Database) plan(ctx context.Context, conn *pgxpool.Conn) error {
	for _, hot := range []*statement{claimSQL, endSQL, endOneSQL, finishSQL, finishOneSQL, enqueueSQL, enqueueOneSQL} {
		if _, err := conn.Exec(ctx, db.In(hot.text), make([]any, len(hot.names))...); err != nil {
			return err
		}
	}
	return nil
}

// A stale connection leads to a server that no longer accepts writes. The server may be a former primary that is now a standby, or a
// standby to which the address pointed temporarily. The connection is otherwise healthy, so a pool would keep it. At the next write, the
// server returns 25006 (read_only_sql_transaction).
//
// Each connection in a store's pools is checked when it is opened, closed when a write on it fails with 25006, and replaced after
// connectionLife. The first 25006 also resets the process's other pools, because their connections lead to the same address.

// readOnly is the SQLSTATE for a write that the server or the transaction does not allow.
const readOnly = "25006"

const (
	// connectionLife is a connection's lifetime, to which up to connectionJitter is added.
	connectionLife   = 10 * time.Minute
	connectionJitter = 2 * time.Minute
	// resetsApart is the minimum interval between two resets of all pools.
	resetsApart = time.Second
)

// ReadOnlyServer reports whether err means that none of the servers that responded accepts writes.
func ReadOnlyServer(err error) bool { return errors.Is(err, dburl.ErrReadOnly) || stale(err) }

// stale reports whether a statement failed because writes are not allowed. Such a statement had no effect.
func stale(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == readOnly
}

// connections holds the state shared by the pools of a store and its clones.
type connections struct {
	outage  outage
	host    *pgxpool.Pool
	own     int                                          // number of connections that a pod opens in addition to those of host
	before  func(context.Context, *pgx.ConnConfig) error // the host's connect hook, which heartbeat connections use
	holders holders

	mu      sync.Mutex
	pools   map[*pgxpool.Pool]bool // whether each pool is reset together with the others
	reset   time.Time              // time of the latest reset
	resets  int
	failing bool            // heartbeats are failing
	checked time.Time       // time of the latest reset or check
	next    context.Context // ends at the next reset or check
	end     context.CancelFunc
	closed  routine.Signal // signaled when a connection was closed
}

func newConnections(host *pgxpool.Pool, own int) *connections {
	c := &connections{pools: map[*pgxpool.Pool]bool{}, host: host, own: own, closed: routine.NewSignal()}
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

// guard configures a pool not to keep stale connections.
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

// resetAll makes the pools reopen their connections, at most once per resetsApart.
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

// recordHeartbeat records whether a heartbeat succeeded. While heartbeats fail, and once they succeed again, it ends the context of
// [Database.UntilReset], so that the owners of other connections check those connections.
func (c *connections) recordHeartbeat(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok && !c.failing || !ok && time.Since(c.checked) < resetsApart {
		return
	}
	c.failing = !ok
	c.checked = time.Now()
	c.end()
	c.next, c.end = context.WithCancel(context.Background())
}

// UntilReset returns a context that ends when the pools are next reset, or when heartbeats fail or succeed again. The owner of another
// connection to the same address must then check that connection.
func (db *Database) UntilReset() context.Context {
	db.connections.mu.Lock()
	defer db.connections.mu.Unlock()
	return db.connections.next
}

// Resets returns how many times the pools have been reset.
func (db *Database) Resets() int {
	db.connections.mu.Lock()
	defer db.connections.mu.Unlock()
	return db.connections.resets
}

// Closed returns a channel that is signaled when one of the pools' connections has been closed. It supports only one reader, and does
// not work with Options.AnyServer.
func (db *Database) Closed() <-chan struct{} { return db.connections.closed }

// accepts is the condition that a session's server accepts writes.
const accepts = `not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'`

const acceptsWritesSQL = `select ` + accepts

// CheckWrites returns an error if the server at the other end of an open connection does not accept writes or does not respond.
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

// CloseStale closes one of the host's connections after one of the store's statements failed on it with 25006, and reports whether it did.
// Statements fail in the same way in a transaction that its owner made read-only, but then the connection is kept. ours reports whether the
// store began the transaction itself; if it did, the transaction was not made read-only.
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
