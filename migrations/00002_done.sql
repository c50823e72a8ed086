-- Where jobs end. Partitioned by class, because each class has its own retention, then by day, so that retention drops
-- tables instead of deleting rows. A day without a partition writes to the default partition, which maintenance empties (7).
-- Locks: new tables only.

-- +goose Up
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
    finished_at timestamptz not null default now()
) partition by list (state);
create table trapeze.done_succeeded partition of trapeze.done for values in ('succeeded') partition by range (finished_at);
create table trapeze.done_failed partition of trapeze.done for values in ('failed') partition by range (finished_at);
create table trapeze.done_cancelled partition of trapeze.done for values in ('cancelled') partition by range (finished_at);
create table trapeze.done_succeeded_default partition of trapeze.done_succeeded default;
create table trapeze.done_failed_default partition of trapeze.done_failed default;
create table trapeze.done_cancelled_default partition of trapeze.done_cancelled default;
-- Each partition has a unique index on id, which identify_partition() creates: it is also the replica identity.

-- +goose Down
drop table trapeze.done;
