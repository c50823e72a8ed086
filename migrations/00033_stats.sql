-- The number of jobs that ended, with their wait and run times, by minute, lane, kind and state. Locks: none; one new table.

-- +goose Up
-- Each pod adds its rows at the end of a minute, outside the commits that end jobs. Older rows are added up by hour and over all pods.
-- A histogram's element i counts the durations up to 100 us times sqrt(2) to the power i - 1; trailing zeros are left out.
create table trapeze.stats (
    at    timestamptz not null,             -- when the minute or the hour began
    lane  text not null,
    kind  text not null,
    state text not null check (state in ('succeeded', 'failed', 'cancelled')),
    boot  uuid,                             -- the pod, or its counter after the clock was set back; null: all pods, in an hour
    jobs  bigint not null,
    wait  integer[] not null default '{}',   -- histogram: due until claimed
    run   integer[] not null default '{}'    -- histogram: run time of the handler
);
-- A row that is sent again after a lost reply is added once. Sums of an hour have no boot, so that a late row makes another one.
create unique index stats_by_time on trapeze.stats (at, lane, kind, state, boot);
-- stats_to_sum answers: which rows are still by minute?
create index stats_to_sum on trapeze.stats (at) where boot is not null;
alter table trapeze.stats replica identity full; -- its rows are updated and deleted, and boot may be null

-- +goose Down
drop table trapeze.stats;
