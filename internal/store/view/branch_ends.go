package view

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// branchesSQL lists the outcomes of a fan-out's branches in the order of the fan-out. A branch's outcome is that of its last job. Plan:
// jobs_of_pipeline from (pipeline, group, branch), stops at the limit; primary key lookups and the id index of done.
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

// BranchEnd is a branch's outcome.
type BranchEnd struct {
	No      int
	ID      int64 // id of the branch's last job, or 0 for a part that was completed externally
	Kind    string
	Subject string
	Part    string
	State   job.State
	Outcome *job.OutcomeStatus
	Reason  *job.Reason
	Error   *string
	Result  json.RawMessage
}

// Branches returns the outcomes of up to limit branches of a fan-out, starting after the given number.
func Branches(ctx context.Context, s *store.Store, pipeline, id int64, after, limit int) ([]BranchEnd, error) {
	list, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (b BranchEnd, err error) {
		var result []byte
		err = row.Scan(&b.No, &b.ID, &b.Kind, &b.Subject, &b.State, &b.Outcome, &b.Reason, &b.Error, &result)
		b.Result = result
		return b, err
	}, branchesSQL, pipeline, id, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the children of job %d: %w", id, err)
	}
	return list, nil
}
