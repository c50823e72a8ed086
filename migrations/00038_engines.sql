-- A lane names the engine that runs its jobs, and the outbox lists the jobs that another engine than PostgreSQL runs. Locks: ACCESS EXCLUSIVE on
-- lanes and pods for an instant, without rewriting a row; a new table.

-- +goose Up
alter table trapeze.lanes
    add column engine text not null default 'postgres' check (octet_length(engine) between 1 and 100),
    add column next_engine text check (octet_length(next_engine) between 1 and 100), -- the engine to which the lane is moving; null: it stays
    add column heard json; -- while the lane is moving: the leases of the pods that have not confirmed that they start no jobs in it

alter table trapeze.pods
    add column engines text[] not null default '{}'; -- the engines that the pod's program serves besides PostgreSQL

-- A job that an engine runs is in live, running, with the engine's id instead of a pod's. Its row here belongs to the latest run.
create table trapeze.outbox (
    id         bigint primary key,
    fence      bigint not null,           -- of the run: its epoch times a million
    engine     text not null,
    lane       text not null,
    run        text,                      -- the engine's name for the run; null: its start is not recorded
    seen_at    timestamptz not null default now() -- when a forwarder last took the row
) with (fillfactor = 50);
-- outbox_unstarted answers: which starts are not recorded? outbox_started answers: which runs has no forwarder examined for the longest time?
create index outbox_unstarted on trapeze.outbox (engine, seen_at) where run is null;
create index outbox_started on trapeze.outbox (engine, seen_at) where run is not null;
-- outbox_of_lane answers: how many jobs of this lane does its engine run?
create index outbox_of_lane on trapeze.outbox (lane);

-- +goose Down
drop table trapeze.outbox;
alter table trapeze.pods drop column engines;
alter table trapeze.lanes drop column heard, drop column next_engine, drop column engine;
