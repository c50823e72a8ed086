package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// countBranches takes branches that have ended here off their fan-outs, and marks those of waiting jobs that have ended here. It
// reads the CTEs branches(group, state, impaired) and parents(id). The rows of fan_outs are locked in the order of their ids,
// after those of live and parked. due says that a fan-out is off balance: see [Store.FanOut]. When a job ends that waits for parts,
// none is open any more: there is nothing to cancel. What ends in a fan-out that is over was counted in it before: an operator has
// tried it again by itself. Plan: fan_outs_pkey, a row a fan-out; deferrals_pkey, a row a job of parents.
const countBranches = `changes as materialized (
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
	// failedBranches are the branches of the jobs of gone, none of which has succeeded.
	failedBranches = `branches as (
	select j.group_id, 'failed', false from gone g join trapeze.jobs j on j.id = g.id where j.group_id is not null
)`
	noParents = `parents as (select null::bigint as id where false)`
)

// branchesSQL reads what branches came to: the last job of each, in the order of the fan-out.
// Plan: jobs_of_pipeline from (pipeline, group, branch), stops at the limit; primary keys and done_by_id.
const branchesSQL = `
select b.child_no, b.id, b.kind, b.subject, v.state, v.outcome, v.reason, v.error, v.result
from (
	select distinct on (coalesce(j.group_id, 0), coalesce(j.child_no, 0)) j.id, j.child_no, j.kind, j.subject
	from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and coalesce(j.child_no, 0) > $3 and j.step > 0
	order by coalesce(j.group_id, 0), coalesce(j.child_no, 0), j.step desc
	limit $4
) b
join trapeze.job v on v.id = b.id
order by b.child_no`

// BranchEnd is what a branch came to.
type BranchEnd struct {
	No      int
	ID      int64 // of its last job; 0: a part that was completed from outside
	Kind    string
	Subject string
	Part    string
	State   job.State
	Outcome *job.Quality
	Reason  *job.Reason
	Error   *string
	Result  json.RawMessage
}

// Branches reads what the branches of a fan-out came to, after the given number, at most limit of them.
func (s *Store) Branches(ctx context.Context, pipeline, id int64, after, limit int) ([]BranchEnd, error) {
	list, err := rows(ctx, s, func(row pgx.CollectableRow) (b BranchEnd, err error) {
		var result []byte
		err = row.Scan(&b.No, &b.ID, &b.Kind, &b.Subject, &b.State, &b.Outcome, &b.Reason, &b.Error, &result)
		b.Result = result
		return b, err
	}, branchesSQL, pipeline, id, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the branches of job %d: %w", id, err)
	}
	return list, nil
}
