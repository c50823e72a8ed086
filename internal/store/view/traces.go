package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// tracesOfFanOutSQL reads the trace contexts of a fan-out's job and of its first branches. For each branch, it reads the context of the
// last job. Joins use it when tracing is enabled. Plan: jobs_pkey; jobs_of_pipeline from (pipeline, group), stops at the limit.
const tracesOfFanOutSQL = `
select j.traceparent from trapeze.jobs j where j.id = $2 and j.traceparent is not null
union all
select b.traceparent from (
	select distinct on (coalesce(j.group_id, 0), coalesce(j.child_no, 0)) j.traceparent
	from trapeze.jobs j
	where j.pipeline_id = $1 and coalesce(j.group_id, 0) = $2 and coalesce(j.child_no, 0) > 0 and j.step > 0
	order by coalesce(j.group_id, 0), coalesce(j.child_no, 0), j.step desc
	limit $3
) b where b.traceparent is not null`

// TracesOfFanOut returns the trace contexts of a fan-out's job and of its first branches, as traceparent strings. It omits jobs that were
// not traced.
func TracesOfFanOut(ctx context.Context, s *store.Store, pipeline, id int64, branches int) ([]string, error) {
	list, err := store.Rows(ctx, s, pgx.RowTo[string], tracesOfFanOutSQL, pipeline, id, branches)
	if err != nil {
		return nil, fmt.Errorf("read the traces of the children of job %d: %w", id, err)
	}
	return list, nil
}
