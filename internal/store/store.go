// Package store holds the connections and the hot statements: those that a pod sends for every job, heartbeat and recovery. Package admin
// has the statements of operators, view those of readers, and upkeep those of the maintenance. The package knows rows, and nothing about
// handlers or goroutines. Its methods are safe for concurrent use.
//
// Every write of a worker carries its lease and matches the row of live by id, fence and pod: a worker that lost its lease writes nothing.
// Lock order, everywhere: schedules, lanes, live by id, parked by id, fan_outs by id, current_runs by (kind, subject). Statements name the
// schema trapeze; [New] replaces it by the configured name.
package store

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is what a statement can run on: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Options configure a [Store]. The zero value is usable.
type Options struct {
	// Schema is the schema of all tables. Default trapeze.
	Schema string
	// BehindPooler states that a transaction pooler is between us and the database: no session state is used, statements are not prepared,
	// and plans are pinned in each statement's round trip.
	BehindPooler bool
	// Connections is the size of the store's own pool. Default 4.
	Connections int
	// UsedEvery is the longest interval between two uses of a connection that has to stay open. A connection is closed when it has not been
	// used for three of these intervals, and for a minute, or the shorter idle time of the host's pool. Default 0.
	UsedEvery time.Duration
	// PodConnections is the maximum number of connections that a pod opens beside the host's pool, for messages.
	PodConnections int
	// AnyServer accepts connections to a standby, for reads. Default: a server must accept writes.
	AnyServer bool
	// TraceQueries keeps the query tracer of the host's pool on the store's connections. Default: it does not see their statements.
	TraceQueries bool
	// StatementTimeout limits each statement of the store, in the client. Default 10s.
	StatementTimeout time.Duration
}

// restsFor is how long a connection may be idle before it is checked by a ping: longer than the poll interval, so that not every poll sends
// one. If a connection was cut before that, the next statement notices it, as on a busy pod.
const restsFor = 15 * time.Second

// idleFor is the time after which an idle connection is closed.
const idleFor = time.Minute

// Store has the hot statements as methods: those that a pod sends for the jobs that it claims. Every other statement is a function that
// takes the store. This package has those for the caller's transaction, for remote workers and for lost leases; the packages admin, view
// and upkeep have the rest.
type Store struct {
	*Database
	ids     *ids
	cluster *cluster
	asked   *atomic.Int64 // number of requests for slots
	stream  int64         // of the remote worker that it acts for; 0: for the pod itself
}

// Database is a separate pool of connections, so that neither the host's queries nor the handlers' can starve claims, finishes and
// heartbeats. Its statements have pinned plans and a deadline, and are retried if they did nothing.
type Database struct {
	pool        *pgxpool.Pool
	schema      string
	pooled      bool
	shortWait   time.Duration // see boundLocks
	wait        time.Duration
	SearchFor   time.Duration // how long a list of package view searches before it returns an incomplete page; default 2s
	plans       *plans
	connections *connections
	steady      bool            // for heartbeats: see Steady
	named       *sync.Map       // statement as written → statement in this schema
	turns       []chan struct{} // limit those that use a connection at once: see Modest
	closing     context.Context // of a steady pool: see patient
	close       context.CancelFunc
}

// pins keep the planner on index plans. Its estimates for arrays, and for tables that fill and empty all day, lead it to hash joins over
// whole tables (35–37 k jobs/s against 57–65 k), and JIT costs 22 ms per claim at a million rows. A plan made while a table was empty stays
// in use until the table is next analysed. A claim must therefore not be planned as a bitmap scan and a sort over all waiting jobs, which
// is cheap only while there are none.
var pins = map[string]string{
	"plan_cache_mode":                     "force_generic_plan",
	"enable_hashjoin":                     "off",
	"enable_mergejoin":                    "off",
	"enable_seqscan":                      "off",
	"enable_bitmapscan":                   "off",
	"jit":                                 "off",
	"idle_in_transaction_session_timeout": "30000",
}

// pinSQL sets the pins for the rest of an implicit transaction; behind a pooler it precedes each statement in the same
// round trip.
const pinSQL = `select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`

// keepSettingsSQL stores the settings that pinSQL changes, and restoreSettingsSQL restores them: in the caller's transaction, for one
// statement.
const (
	keepSettingsSQL = `select set_config('trapeze.plan_cache_mode', current_setting('plan_cache_mode'), true), set_config('trapeze.enable_hashjoin', current_setting('enable_hashjoin'), true),
	set_config('trapeze.enable_mergejoin', current_setting('enable_mergejoin'), true), set_config('trapeze.enable_seqscan', current_setting('enable_seqscan'), true),
	set_config('trapeze.enable_bitmapscan', current_setting('enable_bitmapscan'), true), set_config('trapeze.jit', current_setting('jit'), true)`
	restoreSettingsSQL = `select set_config('plan_cache_mode', current_setting('trapeze.plan_cache_mode'), true), set_config('enable_hashjoin', current_setting('trapeze.enable_hashjoin'), true),
	set_config('enable_mergejoin', current_setting('trapeze.enable_mergejoin'), true), set_config('enable_seqscan', current_setting('trapeze.enable_seqscan'), true),
	set_config('enable_bitmapscan', current_setting('trapeze.enable_bitmapscan'), true), set_config('jit', current_setting('trapeze.jit'), true)`
)

// New opens the store's own pool with the configuration of the host's. It does not connect.
func New(ctx context.Context, host *pgxpool.Pool, o Options) (*Store, error) {
	config := host.Config()
	config.MaxConns = int4(o.Connections)
	if config.MaxConns <= 0 {
		config.MaxConns = 4
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime = max(min(config.MaxConnIdleTime, idleFor), 3*o.UsedEvery)
	// A pool reuses the connection that it used last, but each check for idle ones reverses its order (pgx 5.12). Between two checks,
	// connections that are not needed must become idle.
	config.HealthCheckPeriod = config.MaxConnIdleTime * 5 / 4
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > restsFor }
	// The host's hooks may set roles or types that its own queries need: they stay.
	if !o.TraceQueries {
		untraced(config)
	}
	if o.BehindPooler {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	} else {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		for name, value := range pins {
			config.ConnConfig.RuntimeParams[name] = value
		}
		config.ConnConfig.RuntimeParams["application_name"] = "trapeze"
	}
	plans := &plans{slow: planSlow}
	if !o.BehindPooler {
		plans.watch(config)
	}
	shared := newConnections(host, o.PodConnections)
	if !o.AnyServer {
		shared.guard(config, o.BehindPooler)
	}
	shared.before = config.BeforeConnect
	shared.outage.spare(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the runner's pool: %w", err)
	}
	shared.add(pool, true)
	s := &Store{ids: &ids{}, cluster: &cluster{}, asked: &atomic.Int64{}, Database: &Database{pool: pool, connections: shared, schema: o.Schema,
		pooled: o.BehindPooler, wait: o.StatementTimeout, shortWait: 300 * time.Millisecond, SearchFor: 2 * time.Second, plans: plans, named: &sync.Map{}}}
	s.closing, s.close = context.WithCancel(context.Background())
	if s.schema == "" {
		s.schema = "trapeze"
	}
	if s.wait <= 0 {
		s.wait = 10 * time.Second
	}
	return s, nil
}

// untraced removes the query tracer that the host's pool has, or that its hook gives to each connection.
func untraced(config *pgxpool.Config) {
	config.ConnConfig.Tracer = nil
	before := config.BeforeConnect
	if before == nil {
		return
	}
	config.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) error {
		err := before(ctx, conn)
		conn.Tracer = nil
		return err
	}
}

// Beside returns a store with a separate pool of the given size, so that its users neither wait for nor delay those of s. Close both.
func (s *Store) Beside(ctx context.Context, connections int) (*Store, error) {
	config := s.pool.Config()
	config.MaxConns = int4(connections)
	return s.clone(ctx, config, false)
}

func (s *Store) clone(ctx context.Context, config *pgxpool.Config, steady bool) (*Store, error) {
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open a pool of the runner's: %w", err)
	}
	s.connections.add(pool, !steady)
	clone := s.on(func(db *Database) {
		db.pool, db.steady, db.turns = pool, steady, nil
		db.closing, db.close = context.WithCancel(context.Background())
	})
	clone.ids = &ids{} // a caller that waits for a block of ids waits for a connection of this pool
	return clone, nil
}

// Modest returns s for statements that use at most n of its connections at once. Further ones wait, so that those of s find a connection.
// It is closed with s. A transaction on it must use no other connection of it.
func (s *Store) Modest(n int) *Store {
	clone := s.on(func(db *Database) { db.turns = append([]chan struct{}{make(chan struct{}, n)}, db.turns...) })
	clone.ids = &ids{} // a caller that waits for a block of ids waits for a turn of the clone
	return clone
}

// on returns s on a changed database.
func (s *Store) on(change func(db *Database)) *Store {
	clone, db := *s, *s.Database
	change(&db)
	clone.Database = &db
	return &clone
}

// Turn waits for a turn to use a connection, and returns a function that ends it. Statements and [Database.Tx] wait for their turns
// themselves.
func (db *Database) Turn(ctx context.Context) (end func(), err error) {
	for i, turns := range db.turns { // the narrowest first
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			release(db.turns[:i])
			return nil, ctx.Err()
		}
	}
	return func() { release(db.turns) }, nil
}

// release ends a turn.
func release(turns []chan struct{}) {
	for _, t := range turns {
		<-t
	}
}

// Close closes the store's own pool.
func (db *Database) Close() {
	db.connections.remove(db.pool)
	db.close()
	db.pool.Close()
}

// Schema returns the name of the schema.
func (db *Database) Schema() string { return db.schema }

// Pool returns the store's own pool, for statistics.
func (db *Database) Pool() *pgxpool.Pool { return db.pool }

var schemaDot = regexp.MustCompile(`\btrapeze\.`)

// In returns a statement with the configured schema in place of trapeze.
func (db *Database) In(sql string) string {
	if db.schema == "trapeze" {
		return sql
	}
	if named, ok := db.named.Load(sql); ok {
		return named.(string)
	}
	named := InSchema(db.schema, sql)
	db.named.Store(sql, named)
	return named
}

// InSchema returns a statement on the tables of a schema; empty: trapeze.
func InSchema(schema, sql string) string {
	if schema == "" || schema == "trapeze" {
		return sql
	}
	return schemaDot.ReplaceAllString(sql, schema+".")
}

// Bounded returns a context with the deadline of a statement. A worker's own cancellation must not end a write that it owes: pass
// context.WithoutCancel for those.
func (db *Database) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, db.wait)
}

// Rows runs one statement on the store's own pool, pinned, and collects its rows.
func Rows[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	end, err := s.Turn(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	for try := 0; ; try++ {
		var list []T
		err := s.attempt(ctx, func() (err error) {
			list, err = patient(ctx, s.Database, func(ctx context.Context) ([]T, error) { return once(ctx, s, scan, s.In(sql), args) })
			return err
		})
		if outdated(err) {
			s.pool.Reset() // other connections have the same statement
		}
		if try < 4 && (retryable(err) || unsent(err) || outdated(err) || try == 0 && stale(err) || repeatable(ctx, sql, err)) {
			continue
		}
		return list, err
	}
}

func once[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args []any) (list []T, err error) {
	began := time.Now()
	defer func() {
		if err == nil { // otherwise something else took long
			s.suspect(ctx, time.Since(began))
		}
	}()
	if !s.pooled {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Release()
		// By itself, pgx prepares a statement again after any error, which costs the next part of a poisoned batch 2 ms.
		if _, err := conn.Conn().Prepare(ctx, sql, sql); err != nil {
			return nil, err
		}
		result, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(result, scan)
	}
	// One implicit transaction: the pins hold for the statement and are gone after it.
	return QueryPinned(ctx, s.pool, scan, sql, args)
}

// QueryPinned runs one statement in one round trip with the pins, which hold for the rest of the transaction.
func QueryPinned[T any](ctx context.Context, db DB, scan pgx.RowToFunc[T], sql string, args []any) (list []T, err error) {
	batch := &pgx.Batch{}
	batch.Queue(pinSQL)
	batch.Queue(sql, args...).Query(func(result pgx.Rows) (err error) {
		list, err = pgx.CollectRows(result, scan)
		return err
	})
	err = db.SendBatch(ctx, batch).Close()
	return list, err
}

// Query collects the rows of a statement on db.
func Query[T any](ctx context.Context, s *Store, db DB, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	result, err := db.Query(ctx, s.In(sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, scan)
}

// QueryOne is [Query] for the only row of a statement. Without a row it returns the error none.
func QueryOne[T any](ctx context.Context, s *Store, db DB, none error, sql string, args ...any) (row T, err error) {
	list, err := Query(ctx, s, db, pgx.RowToStructByPos[T], sql, args...)
	if err == nil && len(list) == 0 {
		err = none
	}
	if err != nil {
		return row, err
	}
	return list[0], nil
}

// shortWaitSQL limits how long the rest of a transaction waits for a lock.
const shortWaitSQL = `select set_config('lock_timeout', $1::bigint::text, true)`

// BoundLocks limits how long the rest of a transaction waits for locks, because a job's row may be locked for as long as its handler
// writes.
func (db *Database) BoundLocks(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, shortWaitSQL, db.shortWait.Milliseconds())
	return err
}

// Tx runs do in a transaction of the store's own pool and commits it. After an error for which [Unknown] is true the outcome of the commit
// is unknown.
func (db *Database) Tx(ctx context.Context, do func(tx pgx.Tx) error) error {
	ctx, cancel := db.Bounded(ctx)
	defer cancel()
	end, err := db.Turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	for try := 0; ; try++ {
		err := db.attempt(ctx, func() error { return pgx.BeginFunc(ctx, db.pool, do) })
		if try < 4 && (retryable(err) || unsent(err) || try == 0 && stale(err)) {
			continue
		}
		return err
	}
}
