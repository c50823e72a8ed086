-- Fan-outs: a job that waits for its children, and the pipelines that are worth a list. Locks: ACCESS EXCLUSIVE on jobs for
-- an instant, and while jobs_of_pipeline is built anew over the jobs that are later steps; new tables otherwise.

-- +goose Up
alter table trapeze.jobs
    add column group_id bigint,                -- the fan-out for which this branch counts; null: the pipeline's spine
    add column child_no integer,               -- which of its branches
    add column impaired boolean not null default false; -- something before it went wrong and did not stop it
-- jobs_of_pipeline answers: which is the last step of the spine, and which jobs are the branches of this fan-out?
drop index trapeze.jobs_of_pipeline;
create index jobs_of_pipeline on trapeze.jobs (pipeline_id, (coalesce(group_id, 0)), (coalesce(child_no, 0)), step desc) where step > 0;

-- One row a pipeline that has more than one job, a plan or a name, written once.
create table trapeze.pipelines (
    id         bigint primary key,             -- of its first job
    name       text not null default '' check (octet_length(name) <= 200),
    created_at timestamptz not null default now()
);
-- pipelines_by_age answers: which are the newest?
create index pipelines_by_age on trapeze.pipelines (created_at, id);

-- One row a job that waits, or has waited, for branches: its children, or parts that are completed from outside.
create table trapeze.fan_outs (
    id        bigint primary key,              -- the waiting job
    fence     bigint not null,                 -- of the claim that fanned out
    branches  integer not null,
    open      integer not null,                -- branches that have not ended
    failed    integer not null default 0,
    impaired  integer not null default 0,      -- branches that succeeded although something in them had failed
    fail_fast boolean not null default false,
    ended     boolean not null default false,  -- the job does not wait any more
    outcome   text not null,                   -- its own
    result    json,                            -- its own
    plan      json                             -- the steps that follow: the join first
) with (fillfactor = 50);
-- fan_outs_off_balance answers: whose job is to be ended, and whose branches are to be cancelled? It is empty most of the time.
create index fan_outs_off_balance on trapeze.fan_outs (id)
    where (open = 0) <> ended or (fail_fast and failed > 0 and not ended);

-- What completes a deferred job from outside.
create table trapeze.deferrals (
    id    bigint primary key,                  -- the job
    token text not null
);
create table trapeze.parts (
    id           bigint not null,              -- the deferred job
    part         text not null check (octet_length(part) <= 500),
    result       json,
    error        text,                         -- null: it succeeded
    completed_at timestamptz not null default now(),
    primary key (id, part)
);

alter table trapeze.parked drop column open_children;
-- parked_for_branches answers: which jobs wait for their branches?
create index parked_for_branches on trapeze.parked (id) where why = 'children';

-- Every pipeline as one row. Its status is that of the last job of its spine.
drop view trapeze.job;
create view trapeze.job as
select j.id, j.kind, p.lane, j.subject, p.state,
       exists (select from trapeze.current_runs c where c.kind = j.kind and c.subject = j.subject and c.job_id = j.id) as is_current,
       p.priority, p.attempt, j.max_attempts, p.crashes, p.fence, p.epoch, p.pod, j.pipeline_id, j.parent_id, j.step,
       j.args, j.planned, p.result, p.outcome, p.reason, p.error,
       coalesce(g.done, f.branches - f.open) as progress_done, coalesce(g.total, f.branches) as progress_total,
       g.message as progress_message,
       j.unique_key, j.submitter, j.created_at, p.run_after, p.started_at, p.finished_at, p.cancel_requested, p.event_no,
       j.group_id, j.child_no, j.impaired
from trapeze.jobs j
join (
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, null::json as result, null::text as outcome,
           case when cancel_requested then 'cancel_requested' end as reason, null::text as error,
           case when ready_at > 'epoch' then ready_at end as run_after, started_at, null::timestamptz as finished_at,
           cancel_requested, event_no
    from trapeze.live
    union all
    select id, lane, case why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end,
           priority, attempt, crashes, fence, epoch, null::uuid, null::json, null::text,
           why, null::text, run_after, started_at, null::timestamptz, false, event_no
    from trapeze.parked
    union all
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, result, outcome,
           reason, error, null::timestamptz, started_at, finished_at, false, event_no
    from trapeze.done
) p using (id)
left join trapeze.job_progress g using (id)
left join trapeze.fan_outs f using (id);

create view trapeze.pipeline as
select p.id, p.name,
       case when t.state not in ('succeeded', 'failed', 'cancelled') then 'running'
            when t.state = 'succeeded' and (t.impaired or t.reason = 'children_failed') then 'partial'
            else t.state end as status,
       t.kind, t.id as last_job, t.step,
       -- What follows a fan-out, its join first, is planned when its job begins to wait.
       case when t.state not in ('succeeded', 'failed', 'cancelled')
            then coalesce((select f.plan from trapeze.fan_outs f where f.id = t.id), t.planned) end as planned,
       t.progress_done, t.progress_total, t.progress_message, t.reason, t.error, p.created_at, t.finished_at
from trapeze.pipelines p
cross join lateral (
    select coalesce((
        select j.id from trapeze.jobs j
        where j.pipeline_id = p.id and coalesce(j.group_id, 0) = 0 and coalesce(j.child_no, 0) = 0 and j.step > 0
        order by j.step desc limit 1), p.id) as id
) last
join trapeze.job t on t.id = last.id;

-- +goose Down
drop view trapeze.pipeline;
drop view trapeze.job;
drop index trapeze.parked_for_branches;
alter table trapeze.parked add column open_children integer not null default 0;
drop table trapeze.parts;
drop table trapeze.deferrals;
drop table trapeze.fan_outs;
drop table trapeze.pipelines;
drop index trapeze.jobs_of_pipeline;
create index jobs_of_pipeline on trapeze.jobs (pipeline_id, id) where step > 0;
alter table trapeze.jobs drop column impaired, drop column child_no, drop column group_id;
create view trapeze.job as
select j.id, j.kind, p.lane, j.subject, p.state,
       exists (select from trapeze.current_runs c where c.kind = j.kind and c.subject = j.subject and c.job_id = j.id) as is_current,
       p.priority, p.attempt, j.max_attempts, p.crashes, p.fence, p.epoch, p.pod, j.pipeline_id, j.parent_id, j.step,
       j.args, j.planned, p.result, p.outcome, p.reason, p.error,
       g.done as progress_done, g.total as progress_total, g.message as progress_message,
       j.unique_key, j.submitter, j.created_at, p.run_after, p.started_at, p.finished_at, p.cancel_requested, p.event_no
from trapeze.jobs j
join (
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, null::json as result, null::text as outcome,
           case when cancel_requested then 'cancel_requested' end as reason, null::text as error,
           case when ready_at > 'epoch' then ready_at end as run_after, started_at, null::timestamptz as finished_at,
           cancel_requested, event_no
    from trapeze.live
    union all
    select id, lane, case why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end,
           priority, attempt, crashes, fence, epoch, null::uuid, null::json, null::text,
           why, null::text, run_after, started_at, null::timestamptz, false, event_no
    from trapeze.parked
    union all
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, result, outcome,
           reason, error, null::timestamptz, started_at, finished_at, false, event_no
    from trapeze.done
) p using (id)
left join trapeze.job_progress g using (id);
