-- The history: append-only, partitioned by day, written in the transaction of the change it describes. A job's events
-- are numbered without gaps under its row's lock. Events of pods and of the gate have no job. Locks: new table only.

-- +goose Up
create table trapeze.job_events (
    job        bigint,
    event_no   integer,
    xid        xid8 not null default pg_current_xact_id(),
    at         timestamptz not null default now(),
    fence      bigint,
    boot       uuid,
    from_state text not null default '',
    to_state   text not null default '',
    event      text not null,
    actor      text not null default 'system',
    level      text,                       -- null: info
    message    text,
    fields     json
) partition by range (at);
create table trapeze.job_events_default partition of trapeze.job_events default;
alter table trapeze.job_events_default replica identity full;
-- job_events_of_job answers: what happened to this job, in order?
create index job_events_of_job on trapeze.job_events (job, event_no);
-- job_events_in_commit_order answers: what was written after this transaction?
create index job_events_in_commit_order on trapeze.job_events (xid);

-- +goose Down
drop table trapeze.job_events;
