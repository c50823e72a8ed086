-- What a job is (jobs), and its place while it is unfinished: due or running (live), or waiting for a moment (parked).
-- Locks: new tables only, nothing waits.

-- +goose Up

-- Ids are handed out in blocks: nextval is the first id of a thousand that the caller then owns, so that a job's id is
-- known before its row is committed. Ids are therefore not in time order across pods.
create sequence trapeze.job_ids increment by 1000;

-- The immutable part of every job, written once. args and planned are json, not jsonb: a handler sees the bytes that
-- were submitted.
create table trapeze.jobs (
    id           bigint primary key,
    kind         text not null check (octet_length(kind) between 1 and 100),
    lane         text not null,
    subject      text not null default '' check (octet_length(subject) <= 500),
    args         json not null,
    pipeline_id  bigint not null,          -- the id of the pipeline's first job; a lone job's own id
    parent_id    bigint,
    step         integer not null default 0,
    planned      json,                     -- the steps of a declared chain that follow this one
    max_attempts integer,                  -- null: what its kind says where it runs
    max_crashes  integer,
    submitter    text not null default '',
    unique_key   text,
    created_at   timestamptz not null default now()
);
-- jobs_by_age answers: which jobs are the newest? Ids come from blocks, so they do not tell.
create index jobs_by_age on trapeze.jobs (created_at, id);
-- jobs_of_pipeline answers: which steps followed this first job?
create index jobs_of_pipeline on trapeze.jobs (pipeline_id, id) where step > 0;

-- Only what is due or running: narrow and hot. A claim is a HOT update, because no index mentions a column that a claim
-- sets, partial predicates included.
create table trapeze.live (
    id               bigint primary key,
    ready_at         timestamptz not null,
    claimed_at       timestamptz,          -- of the latest claim
    started_at       timestamptz,          -- of the first claim
    fence            bigint not null default 0,
    pod              uuid,                 -- the owner's boot id; null when pending
    event_no         integer not null,     -- the number of this job's latest event
    writes           integer not null default 0,  -- transactions of its handlers that held it
    epoch            integer not null default 1,
    attempt          integer not null default 0,
    crashes          integer not null default 0,
    priority         smallint not null check (priority between -100 and 100),
    cancel_requested boolean not null default false,
    isolated         boolean not null default false,  -- its next crash convicts it: one such job a pod
    state            text not null check (state in ('pending', 'running')),
    unique_while     text,                 -- pending: the claim frees its unique key; active: its end does
    lane             text not null,
    kind             text not null,
    subject          text not null,
    check ((state = 'running') = (pod is not null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.2);

-- live_for_claim answers: which jobs of this lane come next? The priority is negated so that all its columns ascend and
-- one row comparison can name a position in it.
create index live_for_claim on trapeze.live (lane, (-priority), ready_at, id);
-- live_for_subject answers: which job of this subject comes next?
create index live_for_subject on trapeze.live (kind, subject, (-priority), ready_at, id) where subject <> '';

-- What waits for a moment, for approval or for children.
create table trapeze.parked (
    id           bigint primary key,
    why          text not null check (why in ('scheduled', 'retry', 'retry_later', 'approval', 'children')),
    run_after    timestamptz,
    open_children integer not null default 0,
    started_at   timestamptz,
    fence        bigint not null default 0,
    event_no     integer not null,
    epoch        integer not null default 1,
    attempt      integer not null default 0,
    crashes      integer not null default 0,
    priority     smallint not null check (priority between -100 and 100),
    isolated     boolean not null default false,
    unique_while text,
    lane         text not null,
    kind         text not null,
    subject      text not null
) with (fillfactor = 70);
-- parked_for_promotion answers: what becomes due next?
create index parked_for_promotion on trapeze.parked (run_after, id) where why in ('scheduled', 'retry', 'retry_later');

-- +goose Down
drop table trapeze.parked;
drop table trapeze.live;
drop table trapeze.jobs;
drop sequence trapeze.job_ids;
