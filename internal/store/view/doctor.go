package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// serverSQL reads the relevant server settings, as they apply to this role in this database. Plan: reads no Trapeze tables.
const serverSQL = `
select current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
	current_setting('synchronous_commit'), current_setting('autovacuum') = 'on', current_setting('max_connections')::int,
	current_setting('superuser_reserved_connections')::int,
	(select count(*) from pg_stat_activity a where a.backend_type = 'client backend')::int,
	pg_has_role('pg_read_all_stats', 'member'), pg_notification_queue_usage(), current_setting('server_version_num')::int / 10000`

// Server holds the server settings that doctor checks.
type Server struct {
	Version           string
	Standby           bool
	Fsync             bool
	FullPageWrites    bool
	SynchronousCommit string
	Autovacuum        bool
	MaxConnections    int
	Reserved          int     // connections reserved for superusers, included in the maximum
	Connections       int     // connections in use by all clients
	SeesAll           bool    // whether this role can see the activity of other sessions
	NotifyQueue       float64 // the share of the NOTIFY queue that is in use, from 0 to 1
	Major             int     // the first number of the version
}

// ReadServer reads the relevant server settings.
func ReadServer(ctx context.Context, s *store.Store) (Server, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[Server], serverSQL)
	if err != nil {
		return Server{}, fmt.Errorf("read the server's settings: %w", err)
	}
	return found[0], nil
}

// strongOwnerSQL returns the owner of the enqueue function if the owner is a superuser and other roles may call the function, which then
// runs with superuser privileges. Otherwise it returns nothing. Plan: one row of the system catalog.
const strongOwnerSQL = `
select o.rolname from pg_proc p join pg_roles o on o.oid = p.proowner
where p.oid = 'trapeze.enqueue'::regproc and o.rolsuper
	and exists (select from aclexplode(p.proacl) a left join pg_roles g on g.oid = a.grantee where g.rolsuper is not true)`

// StrongOwner returns the owner of the enqueue function if the owner is a superuser and other roles may call the function. Otherwise it
// returns an empty string.
func StrongOwner(ctx context.Context, s *store.Store) (string, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[string], strongOwnerSQL)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return found[0], nil
}

// clockSQL reads the database's clock. Plan: reads no table.
const clockSQL = `select clock_timestamp()`

// Now returns the database's time. Times in tables are compared with it, because a pod's clock may differ.
func Now(ctx context.Context, s *store.Store) (time.Time, error) {
	at, err := store.Rows(ctx, s, pgx.RowTo[time.Time], clockSQL)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return at[0].UTC(), nil
}

// Clock returns how far the database's clock is ahead of this machine's clock, and the maximum error of that value, which is half of the
// shortest of five round-trip times.
func Clock(ctx context.Context, s *store.Store) (ahead, within time.Duration, err error) {
	for range 5 {
		asked := time.Now()
		at, err := Now(ctx, s)
		if err != nil {
			return 0, 0, err
		}
		half := time.Since(asked) / 2
		if within == 0 || half < within {
			ahead, within = at.Sub(asked.Add(half)), half
		}
	}
	return ahead, within, nil
}

// horizonSQL lists the oldest transactions, prepared transactions and replication slots that hold back the transaction horizon. They keep
// dead rows from being removed and the event feed from advancing. The session that runs this statement is excluded. Plan: reads no Trapeze
// tables.
const horizonSQL = `
select * from (
	select 'session', a.pid::text, coalesce(a.usename::text, ''), coalesce(a.datname::text, ''), coalesce(a.application_name, ''),
		coalesce(a.state, ''), greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions, a.xact_start as since
	from pg_stat_activity a
	where coalesce(a.backend_xmin, a.backend_xid) is not null and a.pid <> pg_backend_pid() and a.backend_type <> 'walsender'
	union all
	select 'prepared', p.gid, p.owner::text, p.database::text, '', 'prepared', age(p.transaction), p.prepared from pg_prepared_xacts p
	union all
	select 'slot', r.slot_name::text, '', coalesce(r.database::text, ''), '', case when r.active then 'active' else 'inactive' end,
		greatest(age(r.xmin), age(r.catalog_xmin)), null
	from pg_replication_slots r where coalesce(r.xmin, r.catalog_xmin) is not null
) h order by transactions desc, since limit 5`

// Holder is a session, prepared transaction or replication slot that holds back the transaction horizon.
type Holder struct {
	What         string // session, prepared or slot
	ID           string // process id or name
	User         string
	Database     string
	Application  string
	State        string
	Transactions int        // number of transactions that have started since
	Since        *time.Time // nil if unknown, for example for a slot
}

// Horizon returns up to five holders of the transaction horizon, oldest first.
func Horizon(ctx context.Context, s *store.Store) ([]Holder, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Holder], horizonSQL)
	if err != nil {
		return nil, fmt.Errorf("find the oldest transaction: %w", err)
	}
	return list, nil
}

// collationSQL returns the database's name, the version of the default collation with which its indexes were built, and the version that
// the server now has. Both are empty if the version is not known, as for C. PostgreSQL 14 does not record it. Plan: one row of a catalog.
const collationSQL = `
select datname::text, coalesce(datcollversion, ''), coalesce(pg_database_collation_actual_version(oid), '') from pg_database where datname = current_database()`

// Collation is the default collation of the database.
type Collation struct{ Database, Built, Installed string }

// ReadCollation returns the versions of the database's default collation.
func ReadCollation(ctx context.Context, s *store.Store) (Collation, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[Collation], collationSQL)
	if err != nil {
		return Collation{}, fmt.Errorf("read the version of the collation: %w", err)
	}
	return found[0], nil
}

// tablesSQL reads the state of those Trapeze tables from which rows are deleted. Each partition of done has a separate row. The fourth
// column is the number of dead rows above which autovacuum processes the table. Plan: reads only system catalogs.
const tablesSQL = `
select c.relname::text, greatest(c.reltuples, 0)::bigint, coalesce(t.n_dead_tup, 0),
	(coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold'))::float8
		+ coalesce(o.factor, current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(c.reltuples, 0))::bigint,
	coalesce(o.enabled, 'true')::boolean, greatest(t.last_vacuum, t.last_autovacuum), age(c.relfrozenxid)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
left join pg_stat_all_tables t on t.relid = c.oid
cross join lateral (
	select max(option_value) filter (where option_name = 'autovacuum_vacuum_threshold') as threshold,
		max(option_value) filter (where option_name = 'autovacuum_vacuum_scale_factor') as factor,
		max(option_value) filter (where option_name = 'autovacuum_enabled') as enabled
	from pg_options_to_table(c.reloptions)
) o
where c.relkind = 'r' and (c.relname in ('live', 'parked', 'jobs', 'current_runs', 'job_progress', 'pods') or starts_with(c.relname, 'done_'))
order by 1`

// Table describes the state of a table.
type Table struct {
	Name       string
	Rows       int64 // estimate from the last vacuum or analyze
	Dead       int64
	Trigger    int64 // number of dead rows above which autovacuum vacuums the table
	Autovacuum bool  // whether autovacuum is enabled for the table
	Vacuumed   *time.Time
	Age        int // number of transactions since the oldest row was frozen
}

// Tables returns the state of the tables from which rows are deleted.
func Tables(ctx context.Context, s *store.Store) ([]Table, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Table], tablesSQL, s.Schema())
	if err != nil {
		return nil, fmt.Errorf("read the state of the tables: %w", err)
	}
	return list, nil
}

// missingDaysSQL lists the days, starting today, for which a partitioned table has no partition. Plan: reads only system catalogs.
const missingDaysSQL = `
select p.parent, d.ahead, (now() at time zone 'UTC')::date + d.ahead
from unnest(array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events']) as p(parent), generate_series(0, $2::int) as d(ahead)
where to_regclass($1 || '.' || p.parent || '_' || to_char((now() at time zone 'UTC')::date + d.ahead, 'YYYYMMDD')) is null
order by d.ahead, p.parent`

// MissingDay describes a missing partition.
type MissingDay struct {
	Table string
	Ahead int // days from today, in UTC
	Day   time.Time
}

// MissingDays returns the partitions that are missing for today and the given number of days ahead, most urgent first.
func MissingDays(ctx context.Context, s *store.Store, ahead int) ([]MissingDay, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[MissingDay], missingDaysSQL, s.Schema(), ahead)
	if err != nil {
		return nil, fmt.Errorf("find missing partitions: %w", err)
	}
	return list, nil
}

// defaultRowsSQL reads the rows of the default partitions, up to a limit for each. Plan: sequential scans of tables that are usually empty.
const defaultRowsSQL = `
select parent, count(*), (min(at) at time zone 'UTC')::date, (max(at) at time zone 'UTC')::date from (
	(select 'done_succeeded' as parent, finished_at as at from trapeze.done_succeeded_default limit $1)
	union all (select 'done_failed', finished_at from trapeze.done_failed_default limit $1)
	union all (select 'done_cancelled', finished_at from trapeze.done_cancelled_default limit $1)
	union all (select 'job_events', e.at from trapeze.job_events_default e limit $1)
) d group by parent order by count(*) desc, parent`

// DefaultRows describes the rows of a default partition.
type DefaultRows struct {
	Table    string
	Rows     int // at most [MostDefaultRows]
	From, To time.Time
}

// MostDefaultRows is the maximum number of rows that ReadDefaultRows counts in each default partition.
const MostDefaultRows = 100_000

// ReadDefaultRows returns the default partitions that are not empty.
func ReadDefaultRows(ctx context.Context, s *store.Store) ([]DefaultRows, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[DefaultRows], defaultRowsSQL, MostDefaultRows)
	if err != nil {
		return nil, fmt.Errorf("read the default partitions: %w", err)
	}
	return list, nil
}

// futureSQL returns times that the database has written and that are ahead of its clock, which was therefore set back. It ignores five
// seconds, so that a pod's registration during the check is no finding. Plan: job_events_in_commit_order backwards for one row; maintenance
// and the open pods.
const futureSQL = `
select what, at, at - now() from (
	select 'a recent event' as what, (select max(e.at) from (
		select at from trapeze.job_events order by xid desc limit 200) e) as at
	union all select 'a run of maintenance', (select max(greatest(begun_at, done_at)) from trapeze.maintenance)
	union all select 'the start of a pod', (select max(started_at) from trapeze.pods where closed_at is null)
) f where at > now() + interval '5 seconds' order by at desc`

// Future is a time that is ahead of the database's clock.
type Future struct {
	What  string
	At    time.Time
	Ahead time.Duration
}

// ReadFuture returns times that the database wrote and that are ahead of its clock, latest first.
func ReadFuture(ctx context.Context, s *store.Store) ([]Future, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Future], futureSQL)
	if err != nil {
		return nil, fmt.Errorf("find times ahead of the clock: %w", err)
	}
	return list, nil
}

// locksSQL returns how many relations a read of finished jobs by id locks, and the size of the server's lock table. Plan: reads only system
// catalogs.
const locksSQL = `
select (select count(distinct t.relid) + count(i.indexrelid) from pg_partition_tree($1::text::regclass) t left join pg_index i on i.indrelid = t.relid),
	current_setting('max_locks_per_transaction')::bigint * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)`

// Locks describes how much of the server's lock table a read of finished jobs takes.
type Locks struct{ Read, Size int }

// ReadLocks returns how many locks a read of finished jobs takes, and how many the server can hold.
func ReadLocks(ctx context.Context, s *store.Store) (Locks, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[Locks], locksSQL, s.Schema()+".done")
	if err != nil {
		return Locks{}, fmt.Errorf("read the size of the lock table: %w", err)
	}
	return found[0], nil
}
