package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// ofJob joins row s with the job's row in jobs, and contains the conditions on that row. Null arguments match everything. Without the
// offset, the planner would start by reading all of jobs, because it expects few rows to meet all these conditions.
const ofJob = `cross join lateral (
	select 1 from trapeze.jobs j where j.id = s.id and ($6::bigint is null or j.pipeline_id = $6) and ($7::bigint is null or j.parent_id = $7)
		and ($8::timestamptz is null or j.created_at >= $8) and ($13 or j.group_id is null)`

// matchOpenSQL lists jobs that have not ended and have no cancel request, ordered by id. Plan: live_pkey and parked_pkey starting after an
// id, each up to the limit; jobs_pkey for those with the right kind, lane, subject and state.
const matchOpenSQL = `
(
	select s.id from trapeze.live s ` + ofJob + ` offset 0) j
	where s.id > $1 and not s.cancel_requested and $10::text is null and $11::text is null and $12::text is null and ($2::text[] is null or s.state = any($2)) and ($3::text is null or s.kind = $3)
		and ($4::text is null or s.lane = $4) and ($5::text is null or s.subject = $5)
	order by s.id limit $9
) union all (
	select s.id from trapeze.parked s ` + ofJob + ` offset 0) j
	where s.id > $1 and ($2::text[] is null
			or case s.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end = any($2))
		and ($3::text is null or s.kind = $3) and ($4::text is null or s.lane = $4) and ($5::text is null or s.subject = $5)
		and ($10::text is null or s.why = $10) and $11::text is null and $12::text is null
	order by s.id limit $9
)
order by id limit $9`

// matchEndedSQL lists failed and cancelled jobs, ordered by id. Plan: the id index of done of each of their days starting after an id, jobs_pkey for
// each; stops at the limit.
const matchEndedSQL = `
select s.id from trapeze.done s ` + ofJob + `
		and ($3::text is null or j.kind = $3) and ($5::text is null or j.subject = $5) offset 0) j
where s.id > $1 and s.state in ('failed', 'cancelled') and s.state = any($2::text[]) and ($4::text is null or s.lane = $4)
	and ($10::text is null or s.reason = $10) and ($11::text is null or s.error_class = $11) and ($12::text is null or s.error_code = $12)
order by s.id limit $9`

// Match returns, in ascending order, up to limit ids of jobs that match a filter, starting after the id after. The filter has the same
// meaning as when it is used to list jobs. If ended is set, Match selects failed and cancelled jobs in the filter's states, of which there
// must be at least one. Otherwise it selects jobs that have not ended and have no cancel request. It ignores the filter's page and limit.
func Match(ctx context.Context, s *store.Store, f job.Filter, ended bool, after int64, limit int) ([]int64, error) {
	sql := matchOpenSQL
	if ended {
		sql = matchEndedSQL
	}
	list, err := store.Rows(ctx, s, pgx.RowTo[int64], sql, after, store.Texts(f.States), store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), store.Some(f.Pipeline),
		store.Some(f.Parent), store.Some(f.Since), limit, store.Some(string(f.Reason)), store.Some(string(f.ErrorClass)), store.Some(f.ErrorCode), f.WithChildren())
	if err != nil {
		return nil, fmt.Errorf("find jobs: %w", err)
	}
	return list, nil
}
