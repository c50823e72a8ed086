package store

// CountBranches takes branches that have ended here off their fan-outs, and marks those of waiting jobs that have ended here. It
// reads the CTEs branches(group, state, impaired) and parents(id). The rows of fan_outs are locked in the order of their ids,
// after those of live and parked. due says that a fan-out is off balance: see [Store.FanOut]. When a job ends that waits for parts,
// none is open any more: there is nothing to cancel. What ends in a fan-out that is over was counted in it before: an operator has
// tried it again by itself. Plan: fan_outs_pkey, a row a fan-out; deferrals_pkey, a row a job of parents.
const CountBranches = `changes as materialized (
	select id, sum(ended)::int as ended, sum(failed)::int as failed, sum(impaired)::int as impaired, bool_or(over) as over
	from (
		select b.of_group as id, 1 as ended, (b.state <> 'succeeded')::int as failed,
			(b.state = 'succeeded' and b.was_impaired)::int as impaired, false as over
		from branches as b(of_group, state, was_impaired)
		union all
		select id, 0, 0, 0, true from parents
	) c group by id
), weighed as materialized (
	select f.id from changes c join trapeze.fan_outs f on f.id = c.id order by f.id for update of f
), counted as (
	update trapeze.fan_outs f set open = case when c.over and (select true from trapeze.deferrals d where d.id = f.id limit 1)
			then 0 else f.open - c.ended end,
		failed = f.failed + c.failed, impaired = f.impaired + c.impaired,
		ended = f.ended or c.over
	from changes c where f.id = c.id and f.id in (select id from weighed) and not (f.ended and f.open = 0)
	returning f.id, ` + offBalance + ` as due
)`

// offBalance is the condition of the index fan_outs_off_balance.
const offBalance = `((f.open = 0) <> f.ended or (f.fail_fast and f.failed > 0 and not f.ended))`

const (
	// FailedBranches are the branches of the jobs of gone, none of which has succeeded.
	FailedBranches = `branches as (
	select j.group_id, 'failed', false from gone g join trapeze.jobs j on j.id = g.id where j.group_id is not null
)`
	NoParents = `parents as (select null::bigint as id where false)`
)

// BranchTails are the last jobs of the branches of the fan-out $2 in the pipeline $1.
const BranchTails = `
	select distinct on (coalesce(j.group_id, 0), coalesce(j.child_no, 0)) j.id, j.child_no, j.kind, j.subject, j.impaired
	from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and j.step > 0
	order by coalesce(j.group_id, 0), coalesce(j.child_no, 0), j.step desc`
