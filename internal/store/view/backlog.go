package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// countedTo limits the count of waiting jobs in a lane. Graphs do not need larger numbers.
const countedTo = 100_000

// fleetSQL counts the due jobs that are waiting in each lane, up to a limit, and returns how long the oldest one has been due. A recovered
// job precedes all others and has no due time, so it is counted but has no age. Plan: per lane an Index Scan on live_for_claim and on
// parked_of_lane that stops at the limit, and one probe of each per rank; pods_open.
const fleetSQL = `
select n.name, (select count(*)::int from (
		select from ` + store.DueJobs + ` w where w.lane = n.name limit $1) w),
	coalesce(extract(epoch from now() - (
		select min(r.ready_at) from ` + store.AllRanks + ` cross join lateral (
			(select l.ready_at from trapeze.live l where l.lane = n.name and (-l.priority) = rank and l.ready_at > 'epoch' and l.state = 'pending'
			order by l.lane, (-l.priority), l.ready_at, l.id limit 1)
			union all
			(select p.run_after from trapeze.parked p where p.lane = n.name and (-p.priority) = rank and p.why = 'subject'
			order by p.lane, (-p.priority), p.run_after, p.id limit 1)
		) r)), 0)::float8,
	(select count(*)::int from trapeze.pods p where p.closed_at is null)
from trapeze.lanes n`

// Backlog describes the due jobs in a lane.
type Backlog struct {
	Lane          string
	Waiting       int     // the count stops at 100,000
	OldestSeconds float64 // 0 if no jobs are due, or only recovered ones
	Pods          int     // total number of open pods, the same for every lane
}

// Backlogs returns each lane's backlog. There is always at least one lane. The cost does not depend on the size of the backlog or the
// history.
func Backlogs(ctx context.Context, s *store.Store) ([]Backlog, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Backlog], fleetSQL, countedTo)
	if err != nil {
		return nil, fmt.Errorf("count waiting jobs: %w", err)
	}
	return list, nil
}
