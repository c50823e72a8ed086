-- Every job as one row with one state, for people, dashboards and SQL. Locks: none that anyone waits for.

-- +goose Up
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

-- +goose Down
drop view trapeze.job;
