package view

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// mostOpen is the maximum number of open jobs that are collected by state. If there are more, open jobs are common enough for a walk over
// all jobs to find the newest ones quickly.
const mostOpen = 10_000

// openIDsSQL collects the ids of open jobs by state, unordered and up to a limit. Plan: one pass over live and parked, which hold no
// history; stops at the limit.
const openIDsSQL = `
select s.id from (
	select l.id, l.state, l.kind, l.lane, l.subject from trapeze.live l
	union all
	select p.id, case p.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end, p.kind, p.lane, p.subject
	from trapeze.parked p
) s
where s.state = any($1::text[]) and ($2::text is null or s.kind = $2) and ($3::text is null or s.lane = $3)
	and ($4::text is null or s.subject = $4) limit $5`

// openJobsSQL lists the jobs in $15 that are still open, newest first. If $16 is not null, it lists only that submitter's jobs. Its
// conditions on times are written so that no index can serve them. Plan: primary keys of the open jobs, then a sort; no history is read.
const openJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where id = any($15::bigint[])
	and state in ('awaiting_approval', 'pending', 'running', 'waiting') and ($16::text is null or submitter = $16 and submitter <> '')
	and ($7::timestamptz is null or created_at >= $7) and ($8::timestamptz is null or (created_at, id) < ($8, $9::bigint)) and ` + jobsMatched + jobsOrdered

// rareOpen reports whether a filter selects only open jobs and few jobs are open. It also returns the ids of the open jobs, which may
// include jobs that the filter excludes. If few are open, a list that starts with the newest job of any state might have to search the
// whole history for them.
func rareOpen(ctx context.Context, s *store.Store, f job.Filter, states []string) (ids []int64, rare bool, err error) {
	if len(states) == 0 || slices.ContainsFunc(f.States, job.State.Terminal) {
		return nil, false, nil
	}
	ids, err = store.Rows(ctx, s, pgx.RowTo[int64], openIDsSQL, states, store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), mostOpen+1)
	if err != nil {
		return nil, false, fmt.Errorf("list open jobs: %w", err)
	}
	return ids, len(ids) <= mostOpen, nil
}
