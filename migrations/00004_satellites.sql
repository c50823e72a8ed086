-- Tables touched only by jobs that use them. Locks: new tables only.

-- +goose Up

-- One row per unique key in force. A submission that finds its key taken locks the row, and a claim takes such a job
-- only when its row is free.
create table trapeze.unique_keys (
    kind   text not null,
    key    text not null check (octet_length(key) between 1 and 500),
    job_id bigint not null,
    primary key (kind, key)
);
create index unique_keys_of_job on trapeze.unique_keys (job_id);

-- Idempotency keys: what a submission that is sent twice must answer.
create table trapeze.submissions (
    key         text primary key check (octet_length(key) between 1 and 500),
    job_id      bigint not null,
    fingerprint bytea not null,            -- SHA-256 of kind, subject and args
    created_at  timestamptz not null default now()
);
create index submissions_by_age on trapeze.submissions (created_at);

create table trapeze.job_progress (
    id         bigint primary key,
    done       bigint,
    total      bigint,
    message    text,
    checkpoint json,
    updated_at timestamptz not null default now()
) with (fillfactor = 50);

-- What a heartbeat must tell its pod.
create table trapeze.cancel_requests (
    pod        uuid not null,
    job_id     bigint not null,
    fence      bigint not null,
    reason     text not null,              -- cancelled, stopped
    created_at timestamptz not null default now(),
    primary key (pod, job_id, fence)
);

-- +goose Down
drop table trapeze.cancel_requests;
drop table trapeze.job_progress;
drop table trapeze.submissions;
drop table trapeze.unique_keys;
