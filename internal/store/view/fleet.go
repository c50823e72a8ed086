package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// countedTo limits the count of a lane's waiting jobs: a graph needs no larger numbers.
const countedTo = 100_000

// fleetSQL counts the due jobs that wait in each lane, up to a limit, and reads for how long the oldest has been due. A
// recovered job is ahead of all others without a time of its own, so it is counted and has no age. Plan: per lane an Index
// Scan on live_for_claim that stops at the limit, and one probe of it per rank; pods_open.
const fleetSQL = `
select n.name, (select count(*)::int from (
		select from trapeze.live l where l.lane = n.name and l.state = 'pending' limit $1) w),
	coalesce(extract(epoch from now() - (
		select min(r.ready_at) from ` + store.AllRanks + ` cross join lateral (
			select l.ready_at from trapeze.live l
			where l.lane = n.name and (-l.priority) = rank and l.ready_at > 'epoch' and l.state = 'pending'
			order by l.lane, (-l.priority), l.ready_at, l.id limit 1
		) r)), 0)::float8,
	(select count(*)::int from trapeze.pods p where p.closed_at is null)
from trapeze.lanes n`

// Backlog counts the jobs that wait in a lane.
type Backlog struct {
	Lane          string
	Waiting       int     // at most 100,000
	OldestSeconds float64 // 0: none waits, or only recovered ones
	Pods          int     // number of open pods, for all lanes together
}

// Fleet returns the backlog of each lane; there is always one. Its cost does not depend on the backlog and the history.
func Fleet(ctx context.Context, s *store.Store) ([]Backlog, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Backlog], fleetSQL, countedTo)
	if err != nil {
		return nil, fmt.Errorf("count what waits: %w", err)
	}
	return list, nil
}
