-- Why a job failed, for programs: a class of a closed set, and a code, which is an SQLSTATE or the handler's own. Null for jobs that did
-- not fail, and for those that a pod of an earlier version ended. Locks: ACCESS EXCLUSIVE on done and its days for an instant; no row is
-- rewritten.

-- +goose Up
alter table trapeze.done
    add column error_class text,
    add column error_code text;
-- The same view with two more columns at its end.
create or replace view trapeze.job as
select j.id, j.kind, p.lane, j.subject, p.state,
       exists (select from trapeze.current_runs c where c.kind = j.kind and c.subject = j.subject and c.job_id = j.id) as is_current,
       p.priority, p.attempt, j.max_attempts, p.crashes, p.fence, p.epoch, p.pod, j.pipeline_id, j.parent_id, j.step,
       j.args, j.planned, p.result, p.outcome, p.reason, p.error,
       coalesce(g.done, f.branches - f.open) as progress_done, coalesce(g.total, f.branches) as progress_total,
       g.message as progress_message,
       j.unique_key, j.submitter, j.created_at, p.run_after, p.started_at, p.finished_at, p.cancel_requested, p.event_no,
       j.group_id, j.child_no, j.impaired, p.error_class, p.error_code
from trapeze.jobs j
join (
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, null::json as result, null::text as outcome,
           case when cancel_requested then 'cancel_requested' end as reason, null::text as error,
           case when ready_at > 'epoch' then ready_at end as run_after, started_at, null::timestamptz as finished_at,
           cancel_requested, event_no, null::text as error_class, null::text as error_code
    from trapeze.live
    union all
    select id, lane, case why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end,
           priority, attempt, crashes, fence, epoch, null::uuid, null::json, null::text,
           why, null::text, run_after, started_at, null::timestamptz, false, event_no, null::text, null::text
    from trapeze.parked
    union all
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, result, outcome,
           reason, error, null::timestamptz, started_at, finished_at, false, event_no, error_class, error_code
    from trapeze.done
) p using (id)
left join trapeze.job_progress g using (id)
left join trapeze.fan_outs f using (id);

-- +goose Down
drop view trapeze.pipeline;
drop view trapeze.job;
alter table trapeze.done drop column error_code, drop column error_class;
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
