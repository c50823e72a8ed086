-- Jobs: the immutable part (jobs), the place until the end (live, parked), and rows that only some jobs have: keys and progress.

-- +goose Up
comment on table trapeze.migrations is 'One row per migration that was applied. The migration tool writes it, and pods read it when they start.';

-- Ids are handed out in blocks: nextval is the first id of a thousand that the caller then owns, so that a job's id is
-- known before its row is committed. Ids are therefore not in time order across pods.
create sequence trapeze.job_ids increment by 1000;
comment on sequence trapeze.job_ids is 'The first job id of each block of 1000 ids that a process has reserved.';

-- A process never uses an id of its block that is a multiple of 1000, so these ids are free for jobs that the database makes.
create sequence trapeze.single_job_ids;
comment on sequence trapeze.single_job_ids is 'The ids of jobs that the database makes, divided by 1000.';

-- args and planned are json, not jsonb: a handler sees the bytes that were submitted.
create table trapeze.jobs (
    id           bigint primary key,
    kind         text not null check (octet_length(kind) between 1 and 100),
    lane         text not null,
    subject      text not null default '' check (octet_length(subject) <= 500),
    key          text check (octet_length(key) between 1 and 200), -- whose job it is, for limits and fairness; null: nobody's
    args         json not null,
    pipeline_id  bigint not null,          -- the id of the pipeline's first job; a lone job's own id
    parent_id    bigint,
    step         integer not null default 0,
    planned      json,                     -- the steps of a declared chain that follow this one
    max_attempts integer,                  -- null: what its kind says where it runs
    max_crashes  integer,
    submitter    text not null default '',
    unique_key   text,
    created_at   timestamptz not null default now(),
    xid          xid8,                     -- of the transaction that submitted it
    group_id     bigint,                   -- the fan-out for which this branch counts; null: the pipeline's spine
    child_no     integer,                  -- which of its branches
    impaired     boolean not null default false, -- something before it went wrong and did not stop it
    ordered      boolean not null default false, -- while it waits for a retry, it keeps its subject
    traceparent  text check (octet_length(traceparent) <= 55), -- the W3C header of that name, version 00; null: not traced
    erased_at    timestamptz,              -- when the job's data was erased; null: never
    replaced     integer,                  -- how often a newer submission has replaced its args while it waited; null: never
    throttled_at timestamptz               -- when a throttled submission took its unique key; null: not throttled
);
comment on table trapeze.jobs is 'One row per job: the part that does not change once the job has started.';
create index jobs_by_age on trapeze.jobs (created_at, id);
comment on index trapeze.jobs_by_age is 'Which jobs are the newest? Ids come from blocks, so they do not tell.';
create index jobs_of_pipeline on trapeze.jobs (pipeline_id, (coalesce(group_id, 0)), (coalesce(child_no, 0)), step desc) where step > 0;
comment on index trapeze.jobs_of_pipeline is 'Which is the last step of the spine, and which jobs are the branches of this fan-out?';
create index jobs_throttled on trapeze.jobs (kind, unique_key, throttled_at) where throttled_at is not null;
comment on index trapeze.jobs_throttled is 'Which throttled job of this unique key came last?';
create index jobs_by_submitter on trapeze.jobs (submitter, created_at, id) where submitter <> '';
comment on index trapeze.jobs_by_submitter is 'Which jobs of this submitter are the newest? It has no entry for a job without a submitter.';

-- Narrow and hot. A claim is a HOT update, because no index mentions a column that a claim sets, partial predicates included, and because
-- the fillfactor leaves room on the page for the columns that a claim fills.
create table trapeze.live (
    id               bigint primary key,
    ready_at         timestamptz not null,
    claimed_at       timestamptz,          -- of the latest claim
    started_at       timestamptz,          -- of the first claim
    fence            bigint not null default 0,
    pod              uuid,                 -- the owner's id; null when pending
    event_no         integer not null,     -- the number of this job's latest event
    writes           integer not null default 0,  -- transactions of its handlers that held it
    epoch            integer not null default 1,
    attempt          integer not null default 0,
    crashes          integer not null default 0,
    priority         smallint not null check (priority between -100 and 100),
    cancel_requested boolean not null default false,
    isolated         boolean not null default false,  -- it has crashed pods: a pod runs one such job at a time
    state            text not null check (state in ('pending', 'running')),
    unique_while     text,                 -- pending: the claim frees its unique key; active: its end does
    lane             text not null,
    kind             text not null,
    subject          text not null,
    claim_xid        xid8,                 -- of the latest claim
    key              text,
    lane_place       integer,              -- its number among the jobs of its key in the lane; null: it has no key
    kind_place       integer,              -- its number among the jobs of its key and kind; null: these have no limit
    due_at           timestamptz,          -- when it became due, if it has waited for a place since; null: ready_at
    start_by         timestamptz,          -- it fails if it is first claimed later; null: no limit
    check ((state = 'running') = (pod is not null)),
    check ((key is null) = (lane_place is null))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.2, fillfactor = 42);
comment on table trapeze.live is 'One row per job that may run or is running. A job with a subject holds the guard of the subject.';
-- The priority is negated so that all columns ascend and one row comparison can name a position.
create index live_for_claim on trapeze.live (lane, (-priority), ready_at, id);
comment on index trapeze.live_for_claim is 'Which jobs of this lane come next?';
-- A job with a key is in live only while it holds a place. The row is the place: its deletion frees it.
create unique index live_lane_places on trapeze.live (key, lane, lane_place) where lane_place is not null;
comment on index trapeze.live_lane_places is 'Which places of this key are taken in this lane?';
create unique index live_kind_places on trapeze.live (key, kind, kind_place) where kind_place is not null;
comment on index trapeze.live_kind_places is 'Which places of this key are taken by this kind?';

create index live_start_by on trapeze.live (start_by) where start_by is not null;
comment on index trapeze.live_start_by is 'Which jobs may not start any more?';

create table trapeze.parked (
    id           bigint primary key,
    why          text not null check (why in ('scheduled', 'retry', 'snooze', 'approval', 'children', 'subject', 'key')),
    run_after    timestamptz,              -- when it becomes due; subject, key: when it became due
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
    subject      text not null,
    key          text,
    start_by     timestamptz
) with (fillfactor = 70);
comment on table trapeze.parked is 'One row per job that may not run yet, with the reason: a moment, approval, its branches, another job of its subject, or as many jobs of its key as may be live.';
create index parked_for_promotion on trapeze.parked (run_after, id) where why in ('scheduled', 'retry', 'snooze');
comment on index trapeze.parked_for_promotion is 'Which job becomes due next?';
-- run_after is when they would have become due.
create index parked_for_approval on trapeze.parked (run_after, id) where why = 'approval';
comment on index trapeze.parked_for_approval is 'Which jobs have waited for approval for too long?';
create index parked_for_branches on trapeze.parked (id) where why = 'children';
comment on index trapeze.parked_for_branches is 'Which jobs wait for their branches?';
-- With the negated priority, parked_of_lane would have the same order within one subject or key, and the planner could search it instead.
create index parked_for_subject on trapeze.parked (kind, subject, lane, priority desc, run_after, id) where why = 'subject';
comment on index trapeze.parked_for_subject is 'Which job of this subject comes next in each lane?';
create index parked_due_of_subject on trapeze.parked (kind, subject, (-priority), run_after, id) where why in ('scheduled', 'retry', 'snooze') and subject <> '';
comment on index trapeze.parked_due_of_subject is 'Which due job of this subject is to be promoted before another one gets its turn?';
create index parked_for_key on trapeze.parked (key, lane, kind, priority desc, run_after, id) where why = 'key';
comment on index trapeze.parked_for_key is 'Which job of this key comes next, in each lane and of each kind?';
create index parked_of_lane on trapeze.parked (lane, (-priority), run_after, id) where why in ('subject', 'key');
comment on index trapeze.parked_of_lane is 'Which due jobs of this lane wait for other jobs of their subjects and keys?';

create index parked_start_by on trapeze.parked (start_by) where start_by is not null and started_at is null;
comment on index trapeze.parked_start_by is 'Which parked jobs may not start any more?';

-- The search for parked jobs whose subjects or places are free continues at this position, on any pod.
create table trapeze.admission (
    one     boolean primary key default true check (one),
    kind    text not null default '',
    subject text not null default '',
    key     text not null default ''
);
insert into trapeze.admission default values;
comment on table trapeze.admission is 'One row: the subject and the key that the search for missed admissions has reached.';

-- Rolls a statement back that has to be sent again, because another transaction took a subject's guard first.
-- +goose StatementBegin
create function trapeze.lost_race() returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'another transaction has taken the subject first' using errcode = 'serialization_failure';
end $$;
-- +goose StatementEnd

-- A submission that finds its key taken locks the row, and a claim takes such a job only when its row is free. If the submission has replaced the
-- job's args, a claim takes the job only if it reads the new ones.
create table trapeze.unique_keys (
    kind     text not null,
    key      text not null check (octet_length(key) between 1 and 500),
    job_id   bigint not null,
    replaced integer,                      -- that of its job, if submissions have replaced the job's args since it took the key
    primary key (kind, key)
);
comment on table trapeze.unique_keys is 'One row per unique key in force, with the job that holds it.';
create index unique_keys_of_job on trapeze.unique_keys (job_id);
comment on index trapeze.unique_keys_of_job is 'Which unique key does this job hold?';

create table trapeze.submissions (
    key         text primary key check (octet_length(key) between 1 and 500),
    job_id      bigint not null,
    fingerprint bytea not null,            -- SHA-256 of kind, subject, args, next steps and key
    created_at  timestamptz not null default now()
);
comment on table trapeze.submissions is 'One row per idempotency key: the answer to a submission that is sent again.';
create index submissions_by_age on trapeze.submissions (created_at);
comment on index trapeze.submissions_by_age is 'Which idempotency keys have expired?';

create table trapeze.job_progress (
    id         bigint primary key,
    done       bigint,
    total      bigint,
    message    text,
    checkpoint json,
    updated_at timestamptz not null default now(),
    snoozes    integer not null default 0  -- how often its handler snoozed it
) with (fillfactor = 50);
comment on table trapeze.job_progress is 'One row per job whose handler reported progress, saved a checkpoint or snoozed the job.';

-- An id for a job that the database makes. The advisory lock is held shared while an id is taken, and alone while the sequence is moved, so that no
-- id is taken between the reading of the sequence and its new value. Each block ends with an error that it catches: PostgreSQL then releases the lock
-- at once and not at the end of the caller's transaction, and keeps the new value of the sequence. After any other error, no lock is left either.
-- +goose StatementBegin
create function trapeze.single_job_id() returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    loop
        begin
            perform pg_advisory_xact_lock_shared(420028);
            free := nextval('trapeze.single_job_ids') * 1000;
            raise sqlstate 'TZ000';
        exception when sqlstate 'TZ000' then
        end;
        exit when not exists (select from trapeze.jobs j where j.id = free);
        -- A restore has left the sequence behind. One transaction at a time moves it, and never back.
        begin
            perform pg_advisory_xact_lock(420028);
            perform setval('trapeze.single_job_ids', greatest((select max(j.id) from trapeze.jobs j) / 1000 + 1, s.last_value)) from trapeze.single_job_ids s;
            raise sqlstate 'TZ000';
        exception when sqlstate 'TZ000' then
        end;
    end loop;
    return free;
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.single_job_id() from public;

-- +goose Down
drop function trapeze.single_job_id(), trapeze.lost_race();
drop table trapeze.job_progress, trapeze.submissions, trapeze.unique_keys, trapeze.admission, trapeze.parked, trapeze.live, trapeze.jobs;
drop sequence trapeze.single_job_ids, trapeze.job_ids;
