-- Runs: the mutex of each subject, the ended jobs, and the history. The last two have daily partitions, so that retention drops tables instead
-- of deleting rows.

-- +goose Up

-- The guard of a subject is its row with the state held: the job that it names may run, and is in live. When that job ends, the row names
-- the next job, or stays as the subject's latest run, with the state free. Only jobs that have a subject touch this table.
create table trapeze.subjects (
    kind         text not null,
    subject      text not null check (subject <> ''),
    job_id       bigint not null,
    state        text not null check (state in ('held', 'free')),
    previous_job bigint                    -- the latest run until this job starts
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
comment on table trapeze.subjects is 'For each kind and subject: the job that holds the subject and may run, or else the job that ran last.';
-- At most one row per kind and subject is held. Each statement that inserts a job with a subject into live must hold it. No column of the index is nullable, so no null can open a hole.
create unique index subjects_one_guard on trapeze.subjects (kind, subject) where state = 'held';
comment on index trapeze.subjects_one_guard is 'Which job holds the subject? At most one may.';
create index subjects_by_subject on trapeze.subjects (kind, subject);
comment on index trapeze.subjects_by_subject is 'Which job holds the subject, or held it last?';
-- With a publication, PostgreSQL refuses updates of a table without a replica identity. FULL costs nothing below wal_level = logical.
alter table trapeze.subjects replica identity full;

-- Partitioned by state, because each state has its own retention, then by day.
create table trapeze.done (
    id          bigint not null,
    state       text not null,
    outcome     text not null,             -- ok, warning, error
    reason      text not null,
    result      json,
    error       text,
    fence       bigint not null,
    pod         uuid,                      -- where it ended
    event_no    integer not null,
    epoch       integer not null,
    attempt     integer not null,
    crashes     integer not null,
    priority    smallint not null,
    lane        text not null,
    started_at  timestamptz,
    finished_at timestamptz not null default now(),
    xid         xid8,                      -- of the end
    claim_xid   xid8,
    error_class text,                      -- a class of a closed set; null: it did not fail
    error_code  text,                      -- an SQLSTATE, or the handler's own
    undo        json                       -- compensations that the last run asked for, as jobs.planned; null once they are submitted
) partition by list (state);
create table trapeze.done_succeeded partition of trapeze.done for values in ('succeeded') partition by range (finished_at);
create table trapeze.done_failed partition of trapeze.done for values in ('failed') partition by range (finished_at);
create table trapeze.done_cancelled partition of trapeze.done for values in ('cancelled') partition by range (finished_at);
create table trapeze.done_succeeded_default partition of trapeze.done_succeeded default;
create table trapeze.done_failed_default partition of trapeze.done_failed default;
create table trapeze.done_cancelled_default partition of trapeze.done_cancelled default;
comment on table trapeze.done is 'One row per job that has ended, until its retention expires.';
comment on table trapeze.done_succeeded is 'One row per job that has succeeded, in a partition for each day.';
comment on table trapeze.done_failed is 'One row per job that has failed, in a partition for each day.';
comment on table trapeze.done_cancelled is 'One row per job that was cancelled, in a partition for each day.';
create index done_failed_by_end on trapeze.done_failed (finished_at, id);
comment on index trapeze.done_failed_by_end is 'Which jobs failed last?';

-- The history is append-only and written in the transaction of the change that it describes. A job's events are numbered without gaps under its row's
-- lock. Events of pods and of the queue state have no job. Jobs that one statement enqueued, claimed or ended alike share one row, because a row
-- each cost more than the transition itself. The job's row, or the event that ended a claim, names the transaction of the shared row.
create table trapeze.job_events (
    job        bigint,
    event_no   integer,
    xid        xid8 not null default pg_current_xact_id(),
    at         timestamptz not null default now(),
    fence      bigint,
    pod        uuid,
    from_state text not null default '',
    to_state   text not null default '',
    event      text not null,
    actor      text not null default 'system',
    level      text,                       -- null: info
    message    text,
    fields     json,
    jobs       bigint[],                   -- whose event it is, where job is null
    event_nos  integer[],
    fences     bigint[],
    claim_xid  xid8                        -- of the claim that this event ended
) partition by range (at);
create table trapeze.job_events_default partition of trapeze.job_events default;
alter table trapeze.job_events_default replica identity full;
comment on table trapeze.job_events is 'One row per event of a job, of several jobs alike, or of none, in a partition for each day.';
create index job_events_of_job on trapeze.job_events (job, event_no);
comment on index trapeze.job_events_of_job is 'What happened to this job, in order? It does not find shared rows.';
create index job_events_in_commit_order on trapeze.job_events (xid);
comment on index trapeze.job_events_in_commit_order is 'What was written by this transaction, and what after it?';

-- No index finds the job of a shared row. The history of one job, as "trapeze events" reads it, follows the transactions that its rows name.
create view trapeze.job_event as
select coalesce(e.job, b.job) as job, coalesce(e.event_no, b.event_no) as event_no, e.xid, e.at,
       coalesce(e.fence, b.fence) as fence, e.pod, e.from_state, e.to_state, e.event, e.actor, e.level, e.message, e.fields
from trapeze.job_events e
left join lateral unnest(e.jobs, e.event_nos, e.fences) as b(job, event_no, fence) on true;
comment on view trapeze.job_event is 'One row per event and job; an event without a job has one row.';

create table trapeze.kind_retention (
    kind   text not null check (octet_length(kind) between 1 and 100),
    state  text not null check (state in ('succeeded', 'failed', 'cancelled')),
    keep_s bigint not null check (keep_s between 0 and 3153600000), -- 0: for ever
    primary key (kind, state)
);
comment on table trapeze.kind_retention is 'One row per kind and state whose retention differs from that of the state.';

create table trapeze.thinned_days (
    state text not null,
    day   date not null,
    gone  text not null,                             -- the kinds, as a list with "only" or "all but" before it
    primary key (state, day)
);
comment on table trapeze.thinned_days is 'One row per state and day from which some kinds were deleted, while other kinds are kept.';

-- Days of the partitioned tables are created ahead and dropped behind. A row whose day has no partition is written to the default
-- partition, so that no statement fails for lack of a day. Each day is created in a separate transaction, which moves the day's rows
-- from the default partition. A day is created with LIKE and attached, because "create table ... partition of" would queue every finish
-- behind an open reader. The functions run with their owner's rights, so that a runtime role needs no DDL.

-- Gives a day the replica identity without which PostgreSQL refuses updates and deletes while a publication exists. Days do not inherit it.
-- Ended jobs have a unique id, so that a subscriber need not compare their json. Events have no unique columns.
-- +goose StatementBegin
create function trapeze.identify_partition(parent text, day_table text) returns void
    language plpgsql set search_path = pg_catalog, trapeze, pg_temp as $$
begin
    if parent = 'job_events' then
        execute format('alter table trapeze.%I replica identity full', day_table);
    else
        execute format('create unique index %I on trapeze.%I (id)', day_table || '_id_idx', day_table);
        execute format('alter table trapeze.%I replica identity using index %I', day_table, day_table || '_id_idx');
    end if;
end $$;
-- +goose StatementEnd

-- Lists the days that lack a partition: yesterday, today and the days ahead, and each day with rows in a default partition. The most
-- urgent days come first.
-- +goose StatementBegin
create function trapeze.missing_days(days_ahead integer) returns table (parent text, day date)
    language plpgsql stable security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    today date := (now() at time zone 'UTC')::date;
begin
    if days_ahead is null or days_ahead not between 0 and 100 then
        raise exception 'cannot create partitions % days ahead: use 0 to 100 days', coalesce(days_ahead::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    return query
        select t.parent, t.day from (
            select p.parent, today + i as day
            from unnest(array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events']) as p(parent), generate_series(-1, days_ahead) i
            where to_regclass('trapeze.' || p.parent || '_' || to_char(today + i, 'YYYYMMDD')) is null
            union select 'done_succeeded', (d.finished_at at time zone 'UTC')::date from trapeze.done_succeeded_default d
            union select 'done_failed', (d.finished_at at time zone 'UTC')::date from trapeze.done_failed_default d
            union select 'done_cancelled', (d.finished_at at time zone 'UTC')::date from trapeze.done_cancelled_default d
            union select 'job_events', (e.at at time zone 'UTC')::date from trapeze.job_events_default e
        ) t
        order by t.day < today, t.day, t.parent;
end $$;
-- +goose StatementEnd

-- Creates a day's partition, and moves the day's rows from the default partition to it. It returns false if the partition exists.
-- Locks, each awaited for at most 0.1 s because statements queue behind the request: ACCESS EXCLUSIVE on the default partition and SHARE
-- UPDATE EXCLUSIVE on the parent. If statements may read or write rows of that day, also ACCESS EXCLUSIVE on the parent, because a
-- statement that was planned before the commit would miss the moved rows, or fail to write to the default partition.
-- +goose StatementBegin
create function trapeze.create_day(parent text, day date) returns boolean
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp set lock_timeout = '100ms' as $$
declare
    name  text := parent || '_' || to_char(day, 'YYYYMMDD');
    first text := to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00';
    next  text := to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00';
    rows  text := format('trapeze.%I where %I >= %L and %2$I < %4$L', parent || '_default',
                         case parent when 'job_events' then 'at' else 'finished_at' end, first, next);
    -- A database may have further columns, of which some may be generated.
    columns text := (select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
                     where attrelid = to_regclass('trapeze.' || parent) and attnum > 0 and not attisdropped and attgenerated = '');
    used  boolean;
begin
    if parent not in ('done_succeeded', 'done_failed', 'done_cancelled', 'job_events') then
        raise exception 'trapeze.% has no days to create', parent;
    end if;
    perform pg_advisory_xact_lock(420022);
    -- Only the lock of a table makes this session see a day that another one has created while this one waited.
    execute format('lock table only trapeze.%I in share update exclusive mode', parent);
    if to_regclass('trapeze.' || name) is not null then
        if not exists (select from pg_inherits where inhrelid = to_regclass('trapeze.' || name)) then
            raise exception 'trapeze.% is not a partition: attach it to trapeze.%, or rename it', name, parent;
        end if;
        return false;
    end if;
    execute 'select exists (select from ' || rows || ')' into used;
    if used or day <= (now() at time zone 'UTC')::date + 1 then
        execute format('lock table only trapeze.%I in access exclusive mode', parent);
    end if;
    execute format('create table trapeze.%I (like trapeze.%I including defaults including constraints including generated including indexes)', name, parent);
    perform trapeze.identify_partition(parent, name);
    execute format('with moved as (delete from %s returning %s) insert into trapeze.%I (%2$s) select * from moved', rows, columns, name);
    execute format('alter table trapeze.%I attach partition trapeze.%I for values from (%L) to (%L)', parent, name, first, next);
    return true;
end $$;
-- +goose StatementEnd

-- Creates all missing days in one transaction and returns how many it created. Maintenance calls create_day for each of them instead.
-- +goose StatementBegin
create function trapeze.ensure_partitions(days_ahead integer) returns integer
    language sql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
    select count(*) filter (where trapeze.create_day(m.parent, m.day))::integer from trapeze.missing_days(days_ahead) m
$$;
-- +goose StatementEnd

-- Drops one day of a table, which need not be the oldest; returns its name, or null when there is none. Locks: ACCESS EXCLUSIVE
-- on the parent for an instant.
-- +goose StatementBegin
create function trapeze.drop_day(parent text, day date) returns text
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    day_table text := parent || '_' || to_char(day, 'YYYYMMDD');
begin
    if parent not in ('done_succeeded', 'done_failed', 'done_cancelled', 'job_events') then
        raise exception 'trapeze.% has no days to drop', parent;
    end if;
    if to_regclass('trapeze.' || day_table) is null then
        return null; -- another pod was as far
    end if;
    execute format('drop table if exists trapeze.%I', day_table);
    return day_table;
end $$;
-- +goose StatementEnd

-- They run with their owner's rights, so not everyone may call them.
revoke execute on function trapeze.missing_days(integer), trapeze.create_day(text, date), trapeze.ensure_partitions(integer),
    trapeze.identify_partition(text, text), trapeze.drop_day(text, date) from public;

select trapeze.identify_partition('done_succeeded', 'done_succeeded_default'), trapeze.identify_partition('done_failed', 'done_failed_default'),
    trapeze.identify_partition('done_cancelled', 'done_cancelled_default');

select trapeze.ensure_partitions(7);

-- +goose Down
drop function trapeze.drop_day(text, date), trapeze.ensure_partitions(integer), trapeze.create_day(text, date), trapeze.missing_days(integer),
    trapeze.identify_partition(text, text);
drop view trapeze.job_event;
drop table trapeze.thinned_days, trapeze.kind_retention, trapeze.job_events, trapeze.done, trapeze.subjects;
