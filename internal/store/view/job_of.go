package view

// jobOf is the view trapeze.job, rewritten as a sequence of lookups for each job: first in live, then in parked, and then in the finished
// jobs of each state. The lookups in the finished jobs start on the day before the job was created, because no job ends earlier. The search
// ends at the first table that contains the job.
//
// The view itself, in contrast, joins the tables and reads every day's finished jobs. If live or parked was empty when last analyzed,
// PostgreSQL scans that table for each job. The view is meant for statements that count or search whole tables.
//
// Each lookup has a limit, so that the planner cannot turn it into a join like that. The lookup in live also has an order. Without it, the
// planner might choose live_for_claim, which also contains the id and costs the same as live_pkey while both seem empty. If wrong clocks
// let a job end days before it was created, the last lookup finds it by reading all days.
const jobOf = `(
	select j.id, j.kind, p.lane, j.subject, j.key, p.state,
		coalesce((select true from trapeze.subjects c where c.kind = j.kind and c.subject = j.subject and j.id = ` + latestRun + ` limit 1), false) as is_current,
		p.priority, p.attempt, j.max_attempts, p.crashes, p.fence, p.epoch, p.pod, j.pipeline_id, j.parent_id, j.step,
		j.args, j.planned, p.result, p.outcome, p.reason, p.error,
		coalesce(g.done, f.branches - f.open) as progress_done, coalesce(g.total, f.branches) as progress_total,
		g.message as progress_message, j.unique_key, j.submitter, j.created_at, p.run_after, p.started_at, p.finished_at,
		p.cancel_requested, p.event_no, j.group_id, j.child_no, j.impaired, p.error_class, p.error_code, coalesce(j.replaced, 0) as replaced
	from trapeze.jobs j
	cross join lateral (
		(select l.lane, l.state, l.priority, l.attempt, l.crashes, l.fence, l.epoch, l.pod, null::json as result, null::text as outcome,
			case when l.cancel_requested then 'cancel_requested' end as reason, null::text as error,
			case when l.ready_at > 'epoch' then l.ready_at end as run_after, l.started_at, null::timestamptz as finished_at,
			l.cancel_requested, l.event_no, null::text as error_class, null::text as error_code
		from trapeze.live l where l.id >= j.id and l.id <= j.id order by l.id limit 1)
		union all
		(select k.lane, case k.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end, k.priority,
			k.attempt, k.crashes, k.fence, k.epoch, null::uuid, null::json, null::text, k.why, null::text, k.run_after, k.started_at,
			null::timestamptz, false, k.event_no, null::text, null::text
		from trapeze.parked k where k.id = j.id limit 1)
		union all
		(select ` + endOf + ` from trapeze.done_succeeded d where ` + endedSince + ` limit 1)
		union all
		(select ` + endOf + ` from trapeze.done_failed d where ` + endedSince + ` limit 1)
		union all
		(select ` + endOf + ` from trapeze.done_cancelled d where ` + endedSince + ` limit 1)
		union all
		(select ` + endOf + ` from trapeze.done d where d.id = j.id limit 1)
		limit 1
	) p
	left join lateral (select g.done, g.total, g.message from trapeze.job_progress g where g.id = j.id limit 1) g on true
	left join lateral (select f.branches, f.open from trapeze.fan_outs f where f.id = j.id limit 1) f on true
)`

const (
	endOf = `d.lane, d.state, d.priority, d.attempt, d.crashes, d.fence, d.epoch, d.pod, d.result, d.outcome, d.reason, d.error,
			null::timestamptz, d.started_at, d.finished_at, false, d.event_no, d.error_class, d.error_code`
	endedSince = `d.id = j.id and d.finished_at >= j.created_at - interval '1 day'`
)

// pipelineOf is the view trapeze.pipeline, except that it uses jobOf to find the job of the last step.
const pipelineOf = `(
	select p.id, p.name,
		case when t.state not in ('succeeded', 'failed', 'cancelled') then 'running'
			when t.state = 'succeeded' and (t.impaired or t.reason = 'children_failed') then 'partial'
			else t.state end as status,
		t.kind, t.id as last_job, t.step,
		case when t.state not in ('succeeded', 'failed', 'cancelled')
			then coalesce((select f.plan from trapeze.fan_outs f where f.id = t.id limit 1), t.planned) end as planned,
		t.progress_done, t.progress_total, t.progress_message, t.reason, t.error, p.created_at, t.finished_at
	from trapeze.pipelines p
	cross join lateral (
		select coalesce((
			select j.id from trapeze.jobs j
			where j.pipeline_id = p.id and coalesce(j.group_id, 0) = 0 and coalesce(j.child_no, 0) = 0 and j.step > 0
			order by j.step desc limit 1), p.id) as id
	) last
	join ` + jobOf + ` t on t.id = last.id
)`
