-- The statistics of ended jobs, those of PostgreSQL's planner, and the jobs that another engine than PostgreSQL runs.

-- +goose Up

-- Each pod adds its rows at the end of a minute, outside the commits that end jobs. Older rows are added up by hour and over all pods.
-- A histogram's element i counts the durations up to 100 us times sqrt(2) to the power i - 1; trailing zeros are left out.
create table trapeze.stats (
    at    timestamptz not null,             -- when the minute or the hour began
    lane  text not null,
    kind  text not null,
    state text not null check (state in ('succeeded', 'failed', 'cancelled')),
    pod   uuid,                             -- the pod, or its counter after the clock was set back; null: all pods, in an hour
    jobs  bigint not null,
    wait  integer[] not null default '{}',   -- histogram: due until claimed
    run   integer[] not null default '{}'    -- histogram: run time of the handler
);
comment on table trapeze.stats is 'One row per minute and pod, or per hour, with lane, kind and state: how many jobs ended, and how long they took.';
-- A row that is sent again after a lost reply is added once. Sums of an hour have no pod, so that a late row makes another one.
create unique index stats_by_time on trapeze.stats (at, lane, kind, state, pod);
comment on index trapeze.stats_by_time is 'How many jobs ended in this time, and was this row added before?';
create index stats_to_sum on trapeze.stats (at) where pod is not null;
comment on index trapeze.stats_to_sum is 'Which rows are still by minute?';
alter table trapeze.stats replica identity full; -- its rows are updated and deleted, and pod may be null

-- A table that was empty when it was last analyzed, and whose file was not, counts as empty for the planner, even if it is full now: it then
-- reads all of an index for each row. A process that notices a slow statement has such tables analyzed, with the owner's right, which
-- the role of a pod may lack. Lock: SHARE UPDATE EXCLUSIVE on a table of a moment ago, for milliseconds; a locked one is passed by.
-- +goose StatementBegin
create function trapeze.analyze_emptied() returns integer
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    name     text;
    analyzed integer := 0;
begin
    for name in
        select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'trapeze' and c.reltuples = 0 and c.relpages > 0 and pg_relation_size(c.oid) > 0
          and c.relname in ('live', 'parked', 'subjects', 'job_progress', 'fan_outs', 'parts', 'deferrals', 'unique_keys',
                            'submissions', 'slot_grants', 'cancel_requests')
    loop
        execute format('analyze (skip_locked) trapeze.%I', name);
        analyzed := analyzed + 1;
    end loop;
    return analyzed;
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.analyze_emptied() from public;

-- A job that an engine runs is in live, running, with the engine's id instead of a pod's. Its row here belongs to the latest run.
create table trapeze.outbox (
    id         bigint primary key,
    fence      bigint not null,           -- of the run: its epoch times a million
    engine     text not null,
    lane       text not null,
    run        text,                      -- the engine's name for the run; null: its start is not recorded
    seen_at    timestamptz not null default now() -- when a forwarder last took the row
) with (fillfactor = 50);
comment on table trapeze.outbox is 'One row per job that another engine than PostgreSQL runs, or is to run.';
create index outbox_unstarted on trapeze.outbox (engine, seen_at) where run is null;
comment on index trapeze.outbox_unstarted is 'Which starts are not recorded?';
create index outbox_started on trapeze.outbox (engine, seen_at) where run is not null;
comment on index trapeze.outbox_started is 'Which runs has no forwarder examined for the longest time?';
create index outbox_of_lane on trapeze.outbox (lane);
comment on index trapeze.outbox_of_lane is 'How many jobs of this lane does its engine run?';

-- +goose Down
drop table trapeze.outbox;
drop function trapeze.analyze_emptied();
drop table trapeze.stats;
