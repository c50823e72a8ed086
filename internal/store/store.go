// Package store holds the connections and the hot statements, which a pod sends for every job, heartbeat and recovery. The statements for
// operators, readers, maintenance and other engines are in packages admin, view, upkeep and outbox. The package works with rows, and knows
// nothing about handlers or goroutines. Its methods are safe for concurrent use.
//
//	claim.go                              takes pending jobs for a pod
//	admit.go                              makes jobs pending whose subject has become free
//	enqueue.go, enqueue_finish_one.go     insert jobs and start them at once if a slot is free; new_job.go decides where a new job goes
//	finish.go, finish_group.go, park.go   write a handler's outcome with the next step, or a retry
//	heartbeat.go                          renews a pod's lease and delivers commands
//	recover.go                            returns jobs of dead pods
//	missing_claims.go                     read back outcomes after a lost reply
//
// Every write for a claim carries its lease and matches the row of live by id, fence and pod. A pod that has lost the claim can only add an
// event (see [Store.StaleResult]). All statements lock rows in this order: schedules, lanes, live by id, parked by id, new guards
// by key, fan_outs by id. A statement changes only those existing guards whose jobs it has locked in live. PostgreSQL runs a CTE when another part first reads
// it, so a condition enforces the order where none follows from the data. Statements refer to the schema as trapeze; [New] replaces that with the configured name.
//
// To change the claim, placement, admission or the poll's search for missed work, one must know sixteen ideas:
//
//  1. The table is the state: pending in live may run, parked may not, and says why.
//  2. Lanes are read in the order of one index: rank, ready time, id.
//  3. SKIP LOCKED: nobody waits for a row that another pod is about to change.
//  4. The fence rises with each claim; every write checks fence and pod.
//  5. A closed, drained or superseded pod claims nothing; recovery returns what it held.
//  6. A claim takes only kinds that the pod handles.
//  7. A low-water mark for each lane skips dead rows and jobs of other kinds.
//  8. Short jobs are claimed ahead of free slots, without a start.
//  9. A pod runs at most one isolated job.
//  10. A unique key held while pending is locked by submissions and freed by the claim.
//  11. The guard of a subject is inserted, on conflict do nothing, before its job becomes pending.
//  12. A new job starts on insert if nothing more urgent is pending; a next step may inherit the guard.
//  13. Transactions that may stay open take no guard: they park the job as due.
//  14. Promotion makes due jobs pending.
//  15. Whoever frees a guard or parks a job admits, after the commit; a pending job yields to one that should precede it.
//  16. Polls admit what was missed, from a position that all pods share.
package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a pool, a connection or a transaction on which a statement can run.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Options configure a [Store]. The zero value is usable.
type Options struct {
	// Schema is the schema that contains all tables. The default is trapeze.
	Schema string
	// BehindPooler means that connections go through a transaction pooler. The store then uses no session state, does not prepare
	// statements, and pins plans in each statement's round trip.
	BehindPooler bool
	// Connections is the size of the store's own pool. The default is 4.
	Connections int
	// UsedEvery is the longest interval between two uses of a connection that must stay open. An idle connection is closed after three such
	// intervals, but not before its normal idle time has passed. The normal idle time is one minute or the host pool's idle time, whichever
	// is shorter. The default is 0.
	UsedEvery time.Duration
	// PodConnections is the maximum number of connections that a pod opens in addition to those of the host's pool. Error messages include
	// it.
	PodConnections int
	// AnyServer also accepts connections to a standby, for reads. By default, a server must accept writes.
	AnyServer bool
	// TraceQueries keeps the query tracer of the host's pool on the store's connections. By default, the tracer does not see the store's
	// statements.
	TraceQueries bool
	// StatementTimeout limits each of the store's statements, on the client side. The default is 10s.
	StatementTimeout time.Duration
}

// restsFor is the idle time after which a connection is checked with a ping before it is used. It is longer than the poll interval, so that polls
// normally send no ping. If a connection is cut sooner than that, the next statement on it fails, just as it would on a
// busy pod.
const restsFor = 15 * time.Second

// idleFor is the idle time after which a connection is closed.
const idleFor = time.Minute

// Store sends statements over a pod's connections. A pod has several stores, which are clones for different purposes.
type Store struct {
	*Database
	ids     *ids
	cluster *cluster
	asked   *atomic.Int64 // number of slot requests sent
	stream  int64         // stream of the remote worker that the store acts for; 0 for the pod itself
}

// Database is a separate connection pool. Because it is separate, neither the host's queries nor those of handlers can starve claims,
// finishes and heartbeats. Its statements have pinned plans and a deadline, and are retried if they had no effect.
type Database struct {
	pool        *pgxpool.Pool
	schema      string
	pooled      bool
	shortWait   time.Duration // see BoundLocks
	wait        time.Duration
	SearchFor   time.Duration // how long a list query of package view searches before it returns an incomplete page; the default is 2s
	plans       *plans
	connections *connections
	steady      bool            // for heartbeats; see Steady
	named       *sync.Map       // original statement → statement for this schema
	turns       []chan struct{} // limit the connections in use; see Modest
	closing     context.Context // only in a steady pool; see runDetached
	close       context.CancelFunc
}

// pins keep the planner on index plans. Its estimates for arrays, and for tables that fill up and empty all day, lead it to hash joins over
// whole tables (35–37 k jobs/s instead of 57–65 k). JIT costs 22 ms per claim at a million rows. A plan that was made while a table was
// empty stays in use until the table is next analyzed. Therefore, a claim must not be planned as a bitmap scan and a sort over all waiting
// jobs, which is cheap only while there are none.
//
// Page costs are set to zero because the indexes of live grow large while a snapshot is held for hours, while the statistics still count
// few rows. The planner would then expect each lookup by id to read a large part of the primary key, and would search a smaller index for
// the id instead.
var pins = map[string]string{
	"plan_cache_mode":                     "force_generic_plan",
	"enable_hashjoin":                     "off",
	"enable_mergejoin":                    "off",
	"enable_seqscan":                      "off",
	"enable_bitmapscan":                   "off",
	"jit":                                 "off",
	"random_page_cost":                    "0",
	"seq_page_cost":                       "0",
	"idle_in_transaction_session_timeout": "30000",
	"idle_session_timeout":                "0", // the pools close idle connections themselves
}

// pinSQL sets the pins for the rest of an implicit transaction. Behind a pooler, it precedes each statement in the same round trip.
// keepSettingsSQL saves the settings that pinSQL changes, and restoreSettingsSQL restores them. They run before and after a single
// statement in the caller's transaction.
var (
	pinSQL             = eachPin(`set_config('%[1]s', '%[2]s', true)`)
	keepSettingsSQL    = eachPin(`set_config('trapeze.%[1]s', current_setting('%[1]s'), true)`)
	restoreSettingsSQL = eachPin(`set_config('%[1]s', current_setting('trapeze.%[1]s'), true)`)
)

// eachPin returns a statement that evaluates an expression for each pinned setting. It omits the idle timeouts, which have no effect within a
// round trip.
func eachPin(expression string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(pins)) {
		if !strings.HasPrefix(name, "idle_") {
			list = append(list, strings.NewReplacer("%[1]s", name, "%[2]s", pins[name]).Replace(expression))
		}
	}
	return "select " + strings.Join(list, ", ")
}

// New opens the store's own pool with the host pool's configuration. It does not connect.
func New(ctx context.Context, host *pgxpool.Pool, o Options) (*Store, error) {
	config := host.Config()
	config.MaxConns = int4(o.Connections)
	if config.MaxConns <= 0 {
		config.MaxConns = 4
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime = max(min(config.MaxConnIdleTime, idleFor), 3*o.UsedEvery)
	// A pool reuses the connection that was used most recently, but each health check reverses the order of idle connections (pgx 5.12).
	// Connections that are not needed must have time to reach the idle limit between two checks.
	config.HealthCheckPeriod = config.MaxConnIdleTime * 5 / 4
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > restsFor }
	// Keep the host's hooks, which may set roles or types that the host's queries need.
	if !o.TraceQueries {
		untraced(config)
	}
	if o.StatementTimeout <= 0 {
		o.StatementTimeout = 10 * time.Second
	}
	if o.BehindPooler {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	} else {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		for name, value := range pins {
			config.ConnConfig.RuntimeParams[name] = value
		}
		config.ConnConfig.RuntimeParams["application_name"] = "trapeze"
		config.ConnConfig.RuntimeParams["lock_timeout"] = strconv.FormatInt(lockWait(o.StatementTimeout).Milliseconds(), 10)
	}
	plans := &plans{slow: planSlow}
	if !o.BehindPooler {
		plans.watch(config)
		prepareSessions(config)
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
	return s, nil
}

// sessionSQL puts pg_catalog first in the session's search_path, so that no function of another schema replaces one that a statement calls.
// The rest of the path, which may be empty, stays for the host's hooks. It returns null if the session lacks the pins. Plan: no table.
const sessionSQL = `
select case when pg_catalog.current_setting('seq_page_cost') operator(pg_catalog.=) '0'
	then pg_catalog.set_config('search_path', pg_catalog.rtrim(pg_catalog.concat('pg_catalog, ', pg_catalog.current_setting('search_path')), ', '), false) end`

// errDropped means that a pooler accepted the settings of a connection, but did not pass them on.
var errDropped = errors.New("a pooler between this pod and PostgreSQL drops settings: set Options.BehindPooler or DirectURL (TRAPEZE_DATABASE_DIRECT_URL)")

// prepareSessions makes a pool run [sessionSQL] on each new connection, after the host's hook, and close connections without the pins.
func prepareSessions(config *pgxpool.Config) {
	after := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if after != nil {
			if err := after(ctx, conn); err != nil {
				return err
			}
		}
		var path *string
		err := conn.QueryRow(ctx, sessionSQL, pgx.QueryExecModeExec).Scan(&path)
		switch pg, ok := errors.AsType[*pgconn.PgError](err); {
		case ok && (strings.HasPrefix(pg.Code, "0A") || strings.HasPrefix(pg.Code, "42")):
			return nil // the server is not PostgreSQL, which the check of the schema reports
		case err == nil && path == nil:
			return errDropped
		}
		return err
	}
}

// untraced removes the query tracer that the host's pool has, or that its hook adds to each connection.
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

// Beside returns a clone of s with a separate pool of the given size, so that users of the clone and users of s do not delay each other.
// Close both stores.
func (s *Store) Beside(ctx context.Context, connections int) (*Store, error) {
	config := s.pool.Config()
	config.MaxConns = int4(connections)
	return s.clone(ctx, config, false)
}

func (s *Store) clone(ctx context.Context, config *pgxpool.Config, steady bool) (*Store, error) {
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open an additional pool for the runner: %w", err)
	}
	s.connections.add(pool, !steady)
	clone := s.on(func(db *Database) {
		db.pool, db.steady, db.turns = pool, steady, nil
		db.closing, db.close = context.WithCancel(context.Background())
	})
	clone.ids = &ids{} // separate, so that a caller that needs ids waits only for connections of this pool
	return clone, nil
}

// Modest returns a clone of s that uses at most n connections of its pool concurrently. Further statements wait, so that connections remain
// free for s. The clone is closed together with s. A transaction on it must not use another of its connections.
func (s *Store) Modest(n int) *Store {
	clone := s.on(func(db *Database) { db.turns = append([]chan struct{}{make(chan struct{}, n)}, db.turns...) })
	clone.ids = &ids{} // separate, so that a caller that needs ids waits only for a turn on the clone
	return clone
}

// Searching returns a copy of s with SearchFor set to d.
func (s *Store) Searching(d time.Duration) *Store {
	return s.on(func(db *Database) { db.SearchFor = d })
}

// on returns a copy of s with a modified database.
func (s *Store) on(change func(db *Database)) *Store {
	clone, db := *s, *s.Database
	change(&db)
	clone.Database = &db
	return &clone
}

// Turn waits until the caller may use a connection, and returns a function that ends the turn. Statements and [Database.Tx] call Turn
// themselves.
func (db *Database) Turn(ctx context.Context) (end func(), err error) {
	for i, turns := range db.turns { // the smallest limit first
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			release(db.turns[:i])
			return nil, because(ctx, hadNoEffect(ctx.Err()))
		}
	}
	return func() { release(db.turns) }, nil
}

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

// Schema returns the schema's name.
func (db *Database) Schema() string { return db.schema }

// Pool returns the store's own pool, for statistics.
func (db *Database) Pool() *pgxpool.Pool { return db.pool }

var schemaDot = regexp.MustCompile(`\btrapeze\.`)

// In returns a statement with the schema name trapeze replaced by that of the configured schema.
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

// InSchema returns a statement with the schema name trapeze replaced by schema, if that is not empty.
func InSchema(schema, sql string) string {
	if schema == "" || schema == "trapeze" {
		return sql
	}
	return schemaDot.ReplaceAllString(sql, schema+".")
}

// Bounded returns a context with the statement timeout. Cancelling a worker must not abort a write that the worker still has to make; pass
// context.WithoutCancel for such writes.
func (db *Database) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if h := db.connections.holders; db.pooled && h.holds != nil && h.holds() {
		return context.WithTimeoutCause(ctx, min(db.wait, h.wait), ErrHeld)
	}
	return context.WithTimeout(ctx, db.wait)
}

// ErrHeld is returned for a statement that [Database.BoundHolders] has ended. The pooler has probably not sent it to a server.
var ErrHeld = errors.New("the statement got no reply while the caller's transaction held a connection of the pooler: " +
	"make this call outside the transaction, or raise the pooler's pool size")

// holders is set by [Database.BoundHolders].
type holders struct {
	holds func() bool
	wait  time.Duration
}

// BoundHolders limits the time of statements behind a pooler if holds reports that their caller has a transaction open. If the pooler has no
// other connection, neither the statement nor a heartbeat can run until that transaction ends. BoundHolders applies to all clones and must
// be called before they are used.
func (db *Database) BoundHolders(holds func() bool, wait time.Duration) {
	db.connections.holders = holders{holds, wait}
}

// because adds ErrHeld to the error of a statement that it has ended.
func because(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrHeld) {
		return fmt.Errorf("%w: %w", ErrHeld, err)
	}
	return err
}

// Rows runs one statement on the store's own pool with pinned plans, and collects its rows.
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
			list, err = runDetached(ctx, s.Database, func(ctx context.Context) ([]T, error) { return once(ctx, s, scan, s.In(sql), args) })
			return err
		})
		if outdated(err) {
			s.pool.Reset() // other connections have prepared the same outdated statement
		}
		if try < 4 && (retryable(err) || unsent(err) || outdated(err) || try == 0 && stale(err) || broke(ctx, err) || repeatable(ctx, sql, err)) {
			continue
		}
		return list, err
	}
}

func once[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args []any) (list []T, err error) {
	began := time.Now()
	defer func() {
		if err == nil { // otherwise the plan was not the cause
			s.suspect(ctx, time.Since(began))
		}
	}()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, hadNoEffect(err)
	}
	defer conn.Release()
	if !s.pooled {
		// pgx itself would re-prepare a statement after any error, which would add 2 ms to the next part of a split batch.
		if _, err := conn.Conn().Prepare(ctx, sql, sql); err != nil {
			return nil, hadNoEffect(err)
		}
		result, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(result, scan)
	}
	// The batch is one implicit transaction, so all settings end with the statement.
	batch := &pgx.Batch{}
	batch.Queue(pooledSQL, lockWait(s.wait).Milliseconds())
	return sendPinned(ctx, batch, conn, scan, sql, args)
}

// lockWait returns the time for which a statement may wait for a lock. It is shorter than the statement timeout. PostgreSQL then reports
// that the statement had no effect; after the statement timeout, the outcome is unknown.
func lockWait(within time.Duration) time.Duration { return within * 4 / 5 }

// QueryPinned runs a statement in one round trip together with the pins, which stay in effect for the rest of the transaction.
func QueryPinned[T any](ctx context.Context, db DB, scan pgx.RowToFunc[T], sql string, args []any) (list []T, err error) {
	return sendPinned(ctx, &pgx.Batch{}, db, scan, sql, args)
}

// sendPinned adds the pins and a statement to batch and sends it.
func sendPinned[T any](ctx context.Context, batch *pgx.Batch, db DB, scan pgx.RowToFunc[T], sql string, args []any) (list []T, err error) {
	batch.Queue(pinSQL)
	batch.Queue(sql, args...).Query(func(result pgx.Rows) (err error) {
		list, err = pgx.CollectRows(result, scan)
		return err
	})
	err = db.SendBatch(ctx, batch).Close()
	return list, err
}

// Query runs a statement on db and collects its rows.
func Query[T any](ctx context.Context, s *Store, db DB, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	result, err := db.Query(ctx, s.In(sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, scan)
}

// QueryOrRows is [Query] or, if db is nil, [Rows].
func QueryOrRows[T any](ctx context.Context, s *Store, db DB, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	if db == nil {
		return Rows(ctx, s, scan, sql, args...)
	}
	return Query(ctx, s, db, scan, sql, args...)
}

// QueryOne is like [Query] for a statement that returns one row. If there is no row, it returns none as the error.
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

// shortWaitSQL limits each lock wait for the rest of a transaction.
const shortWaitSQL = `select set_config('lock_timeout', $1::bigint::text, true)`

// pooledSQL limits each lock wait and sets the search_path for the rest of a transaction behind a pooler, where sessions have no settings.
const pooledSQL = `select pg_catalog.set_config('lock_timeout', $1::bigint::text, true), pg_catalog.set_config('search_path', 'pg_catalog', true)`

// Begin returns the options of a transaction on the store's own pool. Behind a pooler, the transaction has the settings of [pooledSQL].
func (db *Database) Begin(mode string) pgx.TxOptions {
	begin := "begin" + mode
	if db.pooled {
		begin += fmt.Sprintf("; set local lock_timeout = %d; set local search_path = pg_catalog", lockWait(db.wait).Milliseconds())
	}
	return pgx.TxOptions{BeginQuery: begin}
}

// BoundLocks limits each lock wait for the rest of a transaction, because a handler's transaction may lock a job's row for a long time.
func (db *Database) BoundLocks(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, shortWaitSQL, db.shortWait.Milliseconds())
	return err
}

// Tx runs do in a transaction on the store's own pool and commits it. After an error for which [Unknown] is true, the transaction may have
// been committed.
func (db *Database) Tx(ctx context.Context, do func(tx pgx.Tx) error) error {
	ctx, cancel := db.Bounded(ctx)
	defer cancel()
	end, err := db.Turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	for try := 0; ; try++ {
		err := db.attempt(ctx, func() error { return db.begin(ctx, do) })
		if try < 4 && (retryable(err) || unsent(err) || broke(ctx, err) || try == 0 && stale(err)) {
			continue
		}
		return err
	}
}

// begin runs do in a transaction on the store's own pool and commits it.
func (db *Database) begin(ctx context.Context, do func(tx pgx.Tx) error) error {
	committing := false
	err := pgx.BeginTxFunc(ctx, db.pool, db.Begin(""), func(tx pgx.Tx) error {
		err := do(tx)
		committing = err == nil
		return err
	})
	if !committing {
		return hadNoEffect(err)
	}
	return err
}
