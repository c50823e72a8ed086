-- What waits for its own sake: jobs that their handlers put off, jobs that a person must approve, and how old a job may
-- grow. Locks: ACCESS EXCLUSIVE on job_progress and lanes for a moment (no row is rewritten); SHARE on parked while it is
-- read once.

-- +goose Up
alter table trapeze.job_progress add column put_off integer not null default 0;  -- how often its handler put it off
alter table trapeze.lanes
    add column requires_approval boolean not null default false,  -- what is submitted waits until a person approves it
    add column max_age_s integer check (max_age_s >= 0);          -- null: what the pods say; 0: no limit
-- parked_for_approval answers: which jobs have waited for a person for too long? run_after is when they would have become
-- due.
create index parked_for_approval on trapeze.parked (run_after, id) where why = 'approval';

-- +goose Down
drop index trapeze.parked_for_approval;
alter table trapeze.lanes drop column requires_approval, drop column max_age_s;
alter table trapeze.job_progress drop column put_off;
