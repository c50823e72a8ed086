package view

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// mostOpen is how many open jobs are gathered by their state. Where there are more they are not rare: the newest are soon found among all.
const mostOpen = 10_000

// openIDsSQL gathers open jobs by their state, in no order and up to a limit.
// Plan: one pass over live and parked, which hold no history; stops at the limit.
const openIDsSQL = `
select s.id from (
	select l.id, l.state, l.kind, l.lane, l.subject from trapeze.live l
	union all
	select p.id, case p.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end, p.kind, p.lane, p.subject
	from trapeze.parked p
) s
where s.state = any($1::text[]) and ($2::text is null or s.kind = $2) and ($3::text is null or s.lane = $3)
	and ($4::text is null or s.subject = $4) limit $5`

// openJobsSQL lists some of the jobs $15 newest first: those that are open still, of one submitter unless $16 is null. Its moments are such
// that no index can begin with them. Plan: primary keys of what is open, then a sort of that; no history is read.
const openJobsSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where id = any($15::bigint[])
	and state in ('awaiting_approval', 'pending', 'running', 'waiting') and ($16::text is null or submitter = $16 and submitter <> '')
	and ($7::timestamptz is null or created_at >= $7) and ($8::timestamptz is null or (created_at, id) < ($8, $9::bigint)) and ` + jobsMatched + jobsOrdered

// rareOpen reports whether a filter is for open jobs only, of which there are few, and their ids, more than it selects. A list that began
// with the newest of all jobs would look for them through all history.
func rareOpen(ctx context.Context, s *store.Store, f job.Filter, states []string) (ids []int64, rare bool, err error) {
	if len(states) == 0 || slices.ContainsFunc(f.States, job.State.Terminal) {
		return nil, false, nil
	}
	ids, err = store.Rows(ctx, s, pgx.RowTo[int64], openIDsSQL, states, store.Some(f.Kind), store.Some(f.Lane), store.Some(f.Subject), mostOpen+1)
	if err != nil {
		return nil, false, fmt.Errorf("gather open jobs: %w", err)
	}
	return ids, len(ids) <= mostOpen, nil
}
