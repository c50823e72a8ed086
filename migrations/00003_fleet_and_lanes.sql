-- The fleet: pods and remote workers, the lanes in which jobs queue, the global pause, and the database cluster that holds the rows.

-- +goose Up

-- The lease belongs to the pod, not to the job. A closed row never opens again: a pod that finds its own row closed registers again under
-- a new id.
create table trapeze.pods (
    id           uuid primary key,
    name         text not null,
    version      text not null default '',
    kinds        text[] not null default '{}',
    slots        integer not null default 0,
    started_at   timestamptz not null default now(),
    lease_until  timestamptz not null,
    draining     boolean not null default false,
    closed_at    timestamptz,
    closed       text check (closed in ('left', 'lapsed')),
    swept_at     timestamptz,              -- when its jobs were last looked for after it closed
    drained      boolean not null default false, -- by an operator: it starts nothing until it is undrained
    known_claims int,                      -- that its process has worked on for 20 s or longer; null: not reported
    limits       jsonb,                    -- timeout, attempts and so on of each kind that the pod handles; null: not reported
    engines      text[] not null default '{}' -- the engines that the pod's program serves besides PostgreSQL
) with (fillfactor = 50);
comment on table trapeze.pods is 'One row per process that runs jobs, with its lease; closed rows are kept for a while.';
create index pods_open on trapeze.pods (lease_until) where closed_at is null;
comment on index trapeze.pods_open is 'Which pods are in the fleet, and whose lease lapses first?';
create index pods_closed on trapeze.pods (closed_at) where closed_at is not null;
comment on index trapeze.pods_closed is 'Which pods closed so long ago that their rows can be deleted?';
create index pods_to_sweep on trapeze.pods (id)
    where closed_at is not null and (swept_at is null or swept_at - closed_at < interval '10 minutes');
comment on index trapeze.pods_to_sweep is 'Whose jobs are still to be looked for?';

-- A worker without a database is a pod as well. The pod that serves its stream renews its lease. Its row of pods stays as narrow as any other.
create table trapeze.remote_workers (
    pod          uuid primary key references trapeze.pods (id) on delete cascade,
    owner        text not null,              -- who may speak for it: a principal
    stream       bigint not null default 1,  -- rises with every stream: whoever serves an older one is superseded
    stream_key   bytea not null,             -- assignments are signed with it
    policies     jsonb not null default '[]', -- its kinds with what holds for them: for a pod that settles a job without its stream
    -- Claims that the latest heartbeat listed at another pod than the one that sent the job: a job's id, its fence, and so on. That pod
    -- learns here that its job has arrived.
    acknowledged bigint[] not null default '{}'
);
comment on table trapeze.remote_workers is 'One row per remote worker: what is kept of it beside its row of pods.';

create table trapeze.cancel_requests (
    pod        uuid not null,
    job_id     bigint not null,
    fence      bigint not null,
    reason     text not null,              -- cancelled, stopped
    created_at timestamptz not null default now(),
    primary key (pod, job_id, fence)
);
comment on table trapeze.cancel_requests is 'One row per claim that its pod is to cancel; the answer to the heartbeat of the pod lists it.';

-- While a lane moves to another engine, heard has the leases of the pods that have not confirmed that they start no jobs in it.
--
-- A lane whose name ends in * is a template: no job is in it. A job that is submitted for a lane that does not exist, but matches a template, is parked as
-- due. The promotion makes the lane with the template's settings. Maintenance deletes it when it has been without due jobs for a while. First it marks
-- the lane as idle: pods then park the jobs that they submit to it, and a promotion removes the mark.
create table trapeze.lanes (
    name              text primary key check (octet_length(name) between 1 and 100),
    slots_per_pod     integer check (slots_per_pod >= 0),         -- null: as many as the pod has
    enabled           boolean not null default true,
    drained           boolean not null default false,
    slots             integer check (slots >= 0),                 -- of all pods together; null: no limit
    granted           integer not null default 0,                 -- the sum of slot_grants, under this row's lock
    requires_approval boolean not null default false,             -- what is submitted waits until a person approves it
    max_age_s         integer check (max_age_s >= 0),             -- null: what the pods say; 0: no limit
    start_within_s    integer check (start_within_s > 0),         -- of becoming due; a job that starts later fails; null: no limit
    inactivity_timeout_s     integer check (inactivity_timeout_s >= 0),         -- for kinds that say nothing; null: what the pods say; 0: no limit
    four_eyes         boolean not null default false,             -- another person than the submitter must approve
    engine            text not null default 'postgres' check (octet_length(engine) between 1 and 100), -- which runs its jobs
    next_engine       text check (octet_length(next_engine) between 1 and 100), -- to which the lane is moving; null: it stays
    heard             json,
    template          text check (template is null or template like '%*' and name not like '%*'), -- from which it was made and takes its settings; null: it has its own
    idle_since        timestamptz check (idle_since is null or template is not null) -- when maintenance found no due jobs in it; null: it may have some
);
comment on table trapeze.lanes is 'One row per lane or template of lanes, with its settings.';
create index lane_templates on trapeze.lanes (name) where name like '%*';
comment on index trapeze.lane_templates is 'Which templates are there?';

-- The rules of a lane are its row or, if it does not exist, the row of the template with the longest prefix that it matches. The planner inlines the
-- function, because it sets no search path. A migration that adds a column to lanes must create it again.
-- +goose StatementBegin
create function trapeze.lane_rules(lane text) returns setof trapeze.lanes language sql stable begin atomic
    (select n.* from trapeze.lanes n where n.name = lane_rules.lane and lane_rules.lane not like '%*')
    union all
    (select t.* from trapeze.lanes t
    where t.name like '%*' and starts_with(lane_rules.lane, left(t.name, -1)) and octet_length(lane_rules.lane) between octet_length(t.name) and 100
        and lane_rules.lane ~ '^[A-Za-z0-9][A-Za-z0-9_./-]*$' and not exists (select from trapeze.lanes n where n.name = lane_rules.lane)
    order by octet_length(t.name) desc limit 1);
end;
-- +goose StatementEnd
insert into trapeze.lanes (name) values ('default');

create table trapeze.lane_kinds (
    kind text primary key,
    lane text not null references trapeze.lanes (name)
);
comment on table trapeze.lane_kinds is 'One row per kind with a lane of its own; the jobs of other kinds go to the lane named default.';

-- A null of a single key's row means the value for each key, and if that is null as well, the value that the kind declares. The row of a lane
-- without a key limits the rate at which its jobs start. The pods take starts from it before they claim.
create table trapeze.limits (
    scope  text not null check (scope in ('lane', 'kind')),
    name   text not null check (octet_length(name) between 1 and 100),
    key    text not null check (octet_length(key) between 0 and 200), -- *: each key; empty: all jobs together
    slots  integer check (slots > 0),              -- how many of its jobs may run at a time, on all pods together
    weight integer check (weight between 1 and 100), -- lane: its share, beside keys of weight 1
    rate   integer check (rate > 0),               -- how many jobs may start per interval, on all pods together
    per    interval check (per > interval '0'),
    burst  integer check (burst > 0),              -- how many of them may start at once, after a pause
    -- The generic cell rate algorithm (ITU-T I.371): each start moves the time on by per / rate; a start is free while it is at most
    -- (burst - 1) * per / rate in the future.
    next_start timestamptz,
    held_until timestamptz,                        -- of a lane, with or without a key: until when its jobs do not start
    primary key (scope, name, key),
    check ((rate is null) = (per is null) and (rate is null) = (burst is null)),
    check (rate is null or key = '' and scope = 'lane'), -- a rate is for all jobs of a lane
    check (slots is null and weight is null or key <> '')
) with (fillfactor = 50);
comment on table trapeze.limits is 'One row per limit: of a lane''s rate, or of each key or one key in a lane or for a kind.';

-- A pod asks for slots and gives them back; those of a pod that was closed are deleted when its jobs have been recovered.
create table trapeze.slot_grants (
    lane        text not null references trapeze.lanes (name) on delete cascade,
    pod         uuid not null,
    slots       integer not null check (slots >= 0),
    was         integer not null default 0,               -- before the latest change, so that the sum can follow it
    asked       bigint not null default 0,                -- the number of the question that was answered last
    wish        integer not null default 0,               -- how many the pod can use
    wants_since timestamptz,                              -- since when it is in the lane's queue; null: it has as many as it wishes for
    primary key (lane, pod)
) with (fillfactor = 50);
comment on table trapeze.slot_grants is 'One row per lane with a limit and pod: how many of its jobs the pod may run.';
create index slot_grants_of_pod on trapeze.slot_grants (pod);
comment on index trapeze.slot_grants_of_pod is 'Which slots does this pod have?';

create table trapeze.queue_state (
    one    boolean primary key default true check (one),
    paused boolean not null default false,
    frozen boolean not null default false  -- for maintenance: closed like a pause, apart from it
);
comment on table trapeze.queue_state is 'One row: whether the whole fleet is paused or frozen.';
insert into trapeze.queue_state default values;

-- If the leading pod fails, another pod sees here that its turn has come.
create table trapeze.maintenance (
    task     text primary key,
    begun_at timestamptz not null,
    done_at  timestamptz,                            -- null: it has never come to its end
    pod      text not null default '',               -- who did it, or is at it
    count    bigint not null default 0,              -- what it removed or mended, the last time
    seconds  double precision not null default 0,
    error    text not null default ''                -- of the last time; empty: none
) with (fillfactor = 50);
comment on table trapeze.maintenance is 'One row per maintenance task: when it was last done, and by which pod.';

-- The ids of transactions, by which the feed goes on, start again from a low number if a dump is restored. A materialized view is not dumped but created again, so
-- a restored database has another value, while a copy of the files, as a standby or a base backup, keeps it. Any role that may read the tables
-- may read it. After a restore of the schema alone it is empty: refresh it once.
create materialized view trapeze.feed_epoch as select gen_random_uuid() as id;
comment on materialized view trapeze.feed_epoch is 'One row that tells this history from another one that began with the same rows.';

-- By it, pods notice a promoted standby or a restored backup: commits of the last moments may be missing then, and with them ids, fences
-- and events that pods or clients have seen. A null is a value that could not be read.
create table trapeze.cluster (
    one        boolean primary key default true check (one),
    system_id  bigint,                     -- of pg_control_system(): another one after initdb, so after a dump and restore
    timeline   integer,                    -- of the write-ahead log: another one after a promotion or a recovery to a point in time
    feed       uuid,                       -- of feed_epoch: another one after a dump was restored into the same cluster
    history    uuid not null,              -- new with each change of the above; its first 8 characters are in the cursors of streams
    epoch      bigint not null default 0,  -- counts the changes; every fence begins with it
    changed_at timestamptz,                -- null: never
    spare_id   bigint not null default 0   -- the next id of spare_job_id(); a multiple of 1000: none is left
);
comment on table trapeze.cluster is 'One row: the database cluster that the pods have last agreed on.';
insert into trapeze.cluster (history) select id from trapeze.feed_epoch;

-- True while a subscription's worker applies rows of another database. Triggers are enabled ALWAYS, so that a session_replication_role of
-- replica does not disable them, and pass over such rows: their effects are replicated too.
-- +goose StatementBegin
create function trapeze.applies_subscription() returns boolean language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return current_setting('session_replication_role') = 'replica'
        and exists (select from pg_stat_get_subscription(null) s where s.pid = pg_backend_pid());
end $$;
-- +goose StatementEnd

-- The timeline that is written now: null on a standby, and where PostgreSQL refuses to answer. pg_control_checkpoint() names the timeline of
-- the last checkpoint, which is older for a while after a promotion.
-- +goose StatementBegin
create function trapeze.timeline() returns integer language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if pg_catalog.pg_is_in_recovery() then
        return null;
    end if;
    return ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::integer;
exception when others then
    return null;
end $$;
-- +goose StatementEnd

-- The present identity of the cluster. Each part is null where it cannot be read.
-- +goose StatementBegin
create function trapeze.cluster_identity(out system_id bigint, out timeline integer, out feed uuid) language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    timeline := trapeze.timeline();
    begin
        system_id := (select c.system_identifier from pg_catalog.pg_control_system() c);
    exception when others then
        null;
    end;
    begin
        feed := (select f.id from trapeze.feed_epoch f);
    exception when others then
        null;
    end;
end $$;
-- +goose StatementEnd

-- The history that the pods have agreed on: null where the cluster is another one than then, so that settle_history() is due.
-- +goose StatementBegin
create function trapeze.history() returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    return (select c.history from trapeze.cluster c cross join trapeze.cluster_identity() i
            where (i.system_id is null or i.system_id is not distinct from c.system_id)
              and (i.timeline is null or i.timeline is not distinct from c.timeline)
              and (i.feed is null or i.feed is not distinct from c.feed));
end $$;
-- +goose StatementEnd

-- Writes down the cluster's identity. If it has changed, a new history and a new epoch begin, and job ids go on far above those that may
-- have been lost. A second caller finds that done. It has its owner's rights, so that a runtime role need not set the sequence.
-- +goose StatementBegin
create function trapeze.settle_history() returns uuid
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    c trapeze.cluster;
    i record;
begin
    select * into c from trapeze.cluster for update;
    select * into i from trapeze.cluster_identity();
    if i.system_id <> c.system_id or i.timeline <> c.timeline or i.feed <> c.feed then
        c.history := gen_random_uuid();
        -- As claims count before this: see claim.go.
        c.epoch := c.epoch + greatest(1, i.timeline - c.timeline);
        c.changed_at := now();
        perform setval('trapeze.job_ids', greatest((select max(id) from trapeze.jobs), (select last_value from trapeze.job_ids)) + 4294967296);
    end if;
    update trapeze.cluster set system_id = coalesce(i.system_id, c.system_id), timeline = coalesce(i.timeline, c.timeline),
        feed = coalesce(i.feed, c.feed), history = c.history, epoch = c.epoch, changed_at = c.changed_at;
    return c.history;
end $$;
-- +goose StatementEnd

-- Moves the sequence of job ids far above an id of a block that was reserved and is in use, unless that is done.
-- +goose StatementBegin
create function trapeze.advance_job_ids(in_use bigint) returns boolean
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    last bigint;
begin
    perform from trapeze.cluster for update;
    last := (select last_value from trapeze.job_ids);
    if last >= in_use + 4294967296 then
        return false;
    end if;
    perform setval('trapeze.job_ids', greatest((select max(id) from trapeze.jobs), last) + 4294967296);
    return true;
end $$;
-- +goose StatementEnd

-- After a failover or a restore, settle_history has moved job_ids far above the ids that may have been lost, and single_job_ids follows. It moves as
-- far, 2^32 / 1000, if it is above job_ids: pruned jobs may have had these ids. The next spare id is of a new block.
-- +goose StatementBegin
create function trapeze.move_single_job_ids() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform setval('trapeze.single_job_ids', greatest(j.last_value / 1000 + 1, s.last_value + 4294968)) from trapeze.job_ids j, trapeze.single_job_ids s;
    update trapeze.cluster c set spare_id = 0 where c.one;
    return null;
end $$;
-- +goose StatementEnd
create trigger move_single_job_ids after update on trapeze.cluster for each row when (old.history is distinct from new.history
    and not trapeze.applies_subscription()) execute function trapeze.move_single_job_ids();
alter table trapeze.cluster enable always trigger move_single_job_ids;

-- An id for a process that has not reserved a block of ids. Such processes share one block after another, each up to its multiple of 1000. The row is
-- locked until the statement that reserves the id has committed.
-- +goose StatementBegin
create function trapeze.spare_job_id() returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    select c.spare_id into free from trapeze.cluster c where c.one for update;
    if free % 1000 = 0 or exists (select from trapeze.jobs j where j.id = free) then
        free := nextval('trapeze.job_ids');
        free := free + (free % 1000 = 0)::integer;
    end if;
    update trapeze.cluster c set spare_id = free + 1 where c.one;
    return free;
end $$;
-- +goose StatementEnd

-- They move the sequences of job ids, with their owner's rights. A producer in SQL, which may execute enqueue alone, has no use for them.
revoke execute on function trapeze.settle_history(), trapeze.advance_job_ids(bigint), trapeze.move_single_job_ids(), trapeze.spare_job_id()
    from public;

-- +goose Down
drop table trapeze.cluster;
drop function trapeze.spare_job_id(), trapeze.move_single_job_ids(), trapeze.advance_job_ids(bigint), trapeze.settle_history(),
    trapeze.history(), trapeze.cluster_identity(), trapeze.timeline(), trapeze.applies_subscription();
drop materialized view trapeze.feed_epoch;
drop function trapeze.lane_rules(text);
drop table trapeze.maintenance, trapeze.queue_state, trapeze.slot_grants, trapeze.limits, trapeze.lane_kinds, trapeze.lanes, trapeze.cancel_requests,
    trapeze.remote_workers, trapeze.pods;
