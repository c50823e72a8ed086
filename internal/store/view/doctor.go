package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
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
	return Row(ctx, s, "read the server's settings", pgx.RowToStructByPos[Server], serverSQL)
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
	at, err := One(store.Rows(ctx, s, pgx.RowTo[time.Time], clockSQL))
	return at.UTC(), text.Wrap(err, "read the database's clock")
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
	return Rows(ctx, s, "find the oldest transaction", pgx.RowToStructByPos[Holder], horizonSQL)
}

// collationSQL returns the database's name, the version of the default collation with which its indexes were built, and the version that
// the server now has. Both are empty if the version is not known, as for C. PostgreSQL 14 does not record it. Plan: one row of a catalog.
const collationSQL = `
select datname::text, coalesce(datcollversion, ''), coalesce(pg_database_collation_actual_version(oid), '') from pg_database where datname = current_database()`

// Collation is the default collation of the database.
type Collation struct{ Database, Built, Installed string }

// ReadCollation returns the versions of the database's default collation.
func ReadCollation(ctx context.Context, s *store.Store) (Collation, error) {
	return Row(ctx, s, "read the version of the collation", pgx.RowToStructByPos[Collation], collationSQL)
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
where c.relkind = 'r' and (c.relname in ('live', 'parked', 'jobs', 'subjects', 'job_progress', 'pods') or starts_with(c.relname, 'done_'))
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
	return Rows(ctx, s, "read the state of the tables", pgx.RowToStructByPos[Table], tablesSQL, s.Schema())
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
	return Rows(ctx, s, "find missing partitions", pgx.RowToStructByPos[MissingDay], missingDaysSQL, s.Schema(), ahead)
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
	return Rows(ctx, s, "read the default partitions", pgx.RowToStructByPos[DefaultRows], defaultRowsSQL, MostDefaultRows)
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
	return Rows(ctx, s, "find times ahead of the clock", pgx.RowToStructByPos[Future], futureSQL)
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
	return Row(ctx, s, "read the size of the lock table", pgx.RowToStructByPos[Locks], locksSQL, s.Schema()+".done")
}

// readyPod is an SQL condition that is true for a live pod p that can currently start jobs.
const readyPod = `p.closed_at is null and p.lease_until > now() and p.slots > 0 and not p.draining and not p.drained`

// waitingWorkSQL counts waiting due jobs by lane and kind, together with the pods that could run them. Plan: one pass over live and
// parked_of_lane; pods and lane_kinds are small.
const waitingWorkSQL = `
select w.lane, w.kind, w.waiting, w.oldest, (select count(*) from trapeze.pods p where ` + canRun + ` and ` + readyPod + `)::int,
	exists (select from trapeze.lane_kinds k where k.kind = w.kind) or exists (select from trapeze.pods p where w.kind = any(p.kinds))
from (
	select d.lane, d.kind, count(*)::int as waiting, min(d.ready_at) filter (where d.ready_at > 'epoch') as oldest
	from ` + store.DueJobs + ` d group by d.lane, d.kind
) w left join trapeze.lanes n on n.name = w.lane
order by w.lane, w.kind`

// canRun is the SQL condition that pod p can run jobs of row w's kind. Usually, p must have a handler for the kind. If lane n belongs to
// another engine, p must serve that engine instead, because the handlers may run in other processes.
const canRun = `case when coalesce(n.engine, 'postgres') = 'postgres' then w.kind = any(p.kinds) else n.engine = any(p.engines) end`

// WaitingWork counts the due jobs of one kind that are waiting in a lane.
type WaitingWork struct {
	Lane    string
	Kind    string
	Waiting int
	Oldest  *time.Time // when the oldest job became due; nil for jobs recovered from a dead pod, which precede all others
	Pods    int        // number of pods that could currently run the jobs
	Known   bool       // a lane lists the kind, or a pod has handled it recently
}

// ReadWaitingWork counts due jobs that are waiting, by lane and kind.
func ReadWaitingWork(ctx context.Context, s *store.Store) ([]WaitingWork, error) {
	return Rows(ctx, s, "count waiting jobs", pgx.RowToStructByPos[WaitingWork], waitingWorkSQL)
}

// laneStatesSQL lists, for each lane, the conditions that may keep it from starting jobs. It also lists the kinds whose default lane it is,
// and counts the pods that could run any of those kinds. Plan: lanes, lane_kinds and pods are small tables.
const laneStatesSQL = `
select n.name, n.engine, coalesce(n.next_engine, ''),
	exists (select from trapeze.pods p where n.engine = any(p.engines) and p.closed_at is null and p.lease_until > now()),
	n.enabled, n.drained, n.slots, n.slots_per_pod, ` + queueStateColumns + `,
	coalesce((select array_agg(k.kind order by k.kind) from trapeze.lane_kinds k where k.lane = n.name), '{}'),
	(select count(*) from trapeze.pods p where ` + readyPod + `
		and p.kinds && coalesce((select array_agg(k.kind) from trapeze.lane_kinds k where k.lane = n.name), p.kinds))::int
from trapeze.lanes n where n.name not like '%*' order by n.name`

// LaneState describes the conditions that may keep a lane from starting jobs.
type LaneState struct {
	Name           string
	Engine         string
	NextEngine     string // the engine to which the lane is moving; empty if it is not moving
	Served         bool   // a live pod serves the engine; false for PostgreSQL
	Enabled        bool
	Drained        bool
	Slots          *int
	SlotsPerPod    *int
	Paused, Frozen bool     // state of the whole queue
	Kinds          []string // kinds whose default lane this is; kinds without a default lane use the lane named default
	Pods           int      // number of pods that could currently run any of these kinds or, if Kinds is empty, any kind at all
}

// LaneStates returns, for each lane, the conditions that may keep the lane from starting jobs.
func LaneStates(ctx context.Context, s *store.Store) ([]LaneState, error) {
	return Rows(ctx, s, "read the state of the lanes", pgx.RowToStructByPos[LaneState], laneStatesSQL)
}

// podHealthSQL lists the open pods, each with the time left on its lease. Plan: one pass over pods and remote_workers, which are small.
const podHealthSQL = `
select p.id::text, p.name, p.version, p.slots, extract(epoch from p.lease_until - clock_timestamp())::float8, p.draining, p.drained,
	w.pod is not null, coalesce(w.stream, 0), extract(epoch from clock_timestamp() - p.started_at)::float8
from trapeze.pods p left join trapeze.remote_workers w on w.pod = p.id where p.closed_at is null order by p.name, p.id`

// PodHealth describes an open pod's health.
type PodHealth struct {
	PodID    string
	Name     string
	Version  string
	Slots    int
	Lease    float64 // seconds until the lease expires; negative after that
	Draining bool    // whether the pod is shutting down
	Drained  bool    // whether an operator has drained the pod
	Remote   bool    // whether the pod is a remote worker
	Streams  int64   // number of streams that the worker has opened
	Up       float64 // seconds since the pod started
}

// ReadPodHealth returns the open pods, each with the time left on its lease.
func ReadPodHealth(ctx context.Context, s *store.Store) ([]PodHealth, error) {
	return Rows(ctx, s, "read the state of the pods", pgx.RowToStructByPos[PodHealth], podHealthSQL)
}

// unknownWorkSQL lists the pods that are gone or that know about fewer jobs than the table assigns to them, and counts their jobs. It
// considers only jobs that have been running for at least two minutes. It excludes live remote workers, which report their jobs themselves,
// and the jobs that other engines run. Plan: one pass over live; pods_pkey for the running ones.
const unknownWorkSQL = `
select coalesce(p.name, ''), l.pod::text, count(*)::int, min(l.id), coalesce(p.known_claims, 0), p.id is null or p.closed_at is not null
from trapeze.live l
left join trapeze.pods p on p.id = l.pod
where l.state = 'running' and l.claimed_at < now() - interval '2 minutes' and not ` + byEngine + `
	and (p.id is null or p.closed_at < now() - interval '1 minute' or p.closed_at is null and p.lease_until > now()
		and not exists (select from trapeze.remote_workers w where w.pod = p.id))
group by l.pod, p.id, p.name, p.known_claims, p.closed_at
having p.id is null or p.closed_at is not null or count(*) > p.known_claims
order by 1, 2`

// UnknownWork counts the running jobs of a pod that is gone, or that knows about fewer jobs than the table assigns to it.
type UnknownWork struct {
	Pod   string // the pod's name, or empty if it has no row
	PodID string
	Jobs  int   // number of jobs that the pod is running according to the table
	First int64 // the lowest id of those jobs
	Known int   // number of jobs that the pod's process knows
	Gone  bool
}

// FindUnknownWork returns the pods to which the table assigns running jobs that the pods do not know about.
func FindUnknownWork(ctx context.Context, s *store.Store) ([]UnknownWork, error) {
	return Rows(ctx, s, "find running jobs unknown to their pods", pgx.RowToStructByPos[UnknownWork], unknownWorkSQL)
}

// scheduleHealthSQL lists schedules with the conditions that may keep them from firing, including the number of pods that could handle the
// next occurrence, whether the schedule's lane exists, and how long the next occurrence has been due by the database's clock. For a
// schedule that is not planned yet, the latter is the time since the schedule was changed. Plan: schedules, pods and lanes are small
// tables.
const scheduleHealthSQL = `
select c.name, c.kind, c.lane, c.paused, c.error, c.next_at,
	coalesce(extract(epoch from clock_timestamp() - case when c.planned then c.next_at else c.updated_at end), 0)::float8,
	(select count(*) from trapeze.pods p where p.closed_at is null and p.lease_until > clock_timestamp() and c.kind = any(p.kinds))::int,
	c.lane = '' or exists (select from trapeze.lane_rules(c.lane)),
	c.expression, c.zone, clock_timestamp()
from trapeze.schedules c where not c.removed order by c.name`

// ScheduleHealth describes a schedule's health.
type ScheduleHealth struct {
	Name   string
	Kind   string
	Lane   string // empty means the default lane of its kind
	Paused bool
	Error  string
	Next   *time.Time // nil if the next occurrence has not been planned yet or there are no more
	Due    float64    // seconds since the next occurrence became due; negative if it is in the future
	Pods   int        // number of live pods that handle its kind
	Placed bool       // whether its lane exists

	Expression, Zone string
	Now              time.Time // the time on the database's clock
}

// ReadScheduleHealth returns the schedules, ordered by name, with the conditions that may keep them from firing.
func ReadScheduleHealth(ctx context.Context, s *store.Store) ([]ScheduleHealth, error) {
	return Rows(ctx, s, "read the state of the schedules", pgx.RowToStructByPos[ScheduleHealth], scheduleHealthSQL)
}

// unidentifiedSQL lists the tables without a usable replica identity that are in a publication of updates or deletes, which PostgreSQL
// therefore refuses. A partition is also in the publications of its parents. Plan: reads only system catalogs; publications are read only
// for tables without a replica identity.
const unidentifiedSQL = `
select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
where c.relkind = 'r' and c.relreplident <> 'f'
	and not exists (select from pg_index i where i.indrelid = c.oid and i.indisvalid
		and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end)
	and exists (select from pg_publication p join pg_publication_tables t on t.pubname = p.pubname
		where (p.pubupdate or p.pubdelete) and t.schemaname = $1 and t.tablename in (
			select a.relname from pg_class a where a.oid = c.oid or a.oid in (select pg_partition_ancestors(c.oid))))
order by 1`

// Unidentified returns the published tables without a replica identity.
func Unidentified(ctx context.Context, s *store.Store) ([]string, error) {
	return Rows(ctx, s, "find tables without a replica identity", pgx.RowTo[string], unidentifiedSQL, s.Schema())
}

// weakTriggersSQL lists the triggers that are disabled, or that a session_replication_role of replica disables. It leaves out the
// application's own triggers, whose functions are in other schemas. Plan: reads only system catalogs.
const weakTriggersSQL = `
select t.tgname::text, c.relname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
	join pg_proc f on f.oid = t.tgfoid and f.pronamespace = n.oid
where n.nspname = $1 and t.tgenabled <> 'A' and t.tgconstraint = 0 order by 2, 1`

// Trigger names a trigger and its table.
type Trigger struct{ Name, Table string }

// WeakTriggers returns the triggers of Trapeze that are not always enabled.
func WeakTriggers(ctx context.Context, s *store.Store) ([]Trigger, error) {
	return Rows(ctx, s, "find triggers that are not always enabled", pgx.RowToStructByPos[Trigger], weakTriggersSQL, s.Schema())
}

// lockHoldersSQL lists the sessions and prepared transactions that other sessions wait for, if those sessions use Trapeze's tables. A
// session that waits itself is not listed, but the session at the end of its chain is. Process 0 stands for a prepared transaction. The
// statement reads no Trapeze table, so a lock on one cannot delay it. Plan: reads only system views.
const lockHoldersSQL = `
with recursive locks as materialized (select * from pg_locks),
waiting as materialized (
	select l.pid, min(l.waitstart) as since from locks l
	where not l.granted and exists (
		select from locks o join pg_class c on o.locktype = 'relation' and c.oid = o.relation join pg_namespace n on n.oid = c.relnamespace
		where o.pid = l.pid and n.nspname = $1 and o.database = (select oid from pg_database where datname = current_database())
	)
	group by 1
),
chain (waiter, pid) as (
	select w.pid, b from waiting w, unnest(pg_blocking_pids(w.pid)) b
	union
	select c.waiter, b from chain c, unnest(pg_blocking_pids(c.pid)) b where c.pid <> 0
),
roots as (
	select c.pid, count(distinct c.waiter)::int as waiting, min(w.since) as since from chain c join waiting w on w.pid = c.waiter
	where c.pid = 0 or not exists (select from locks l where l.pid = c.pid and not l.granted)
	group by 1
)
select r.pid, coalesce(p.gid, ''), coalesce(a.usename::text, p.owner::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
	coalesce(left(a.query, 200), ''), r.waiting,
	extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared, r.since))::float8,
	coalesce(extract(epoch from clock_timestamp() - r.since), 0)::float8
from roots r
left join pg_stat_activity a on a.pid = r.pid
left join lateral (
	select x.gid, x.owner, x.prepared from pg_prepared_xacts x
	where r.pid = 0 and x.database = current_database() and exists (
		select from locks l join locks w on not w.granted
			and (w.locktype = 'relation' and w.relation = l.relation or w.transactionid = l.transactionid)
		where l.pid is null and l.granted and l.virtualtransaction = '-1/' || x.transaction
	)
) p on true
order by r.waiting desc, 8 desc limit 5`

// LockHolder is a session or a prepared transaction that sessions of Trapeze wait for.
type LockHolder struct {
	PID         int    // 0 for a prepared transaction
	Prepared    string // name of the prepared transaction
	User        string
	Application string
	State       string // empty if this role may not see other sessions
	Statement   string // the running or last statement, in full only for roles with pg_read_all_stats
	Waiting     int    // number of waiting sessions
	Age         float64
	Longest     float64 // seconds for which the first session has been waiting; Age and Longest are in seconds
}

// longWait is the time after which a wait for a lock counts. Statements of pods wait for each other for milliseconds.
const longWait = time.Second

// LockHolders returns the sessions and prepared transactions for which sessions of Trapeze have been waiting for more than a second.
func LockHolders(ctx context.Context, s *store.Store) ([]LockHolder, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[LockHolder], lockHoldersSQL, s.Schema())
	if err != nil {
		return nil, fmt.Errorf("find the sessions that hold locks: %w", err)
	}
	found := list[:0]
	for _, h := range list {
		if h.Longest >= longWait.Seconds() {
			found = append(found, h)
		}
	}
	return found, nil
}
