package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// countedTo is how many waiting jobs of a lane are counted: whoever looks at a graph knows what to do before that.
const countedTo = 100_000

// fleetSQL tells of each lane how many jobs are due and wait in it, counted up to a limit, and for how long the oldest has
// been due. A recovered job stands ahead of all others without a moment of its own, so it is counted and has no age.
// Plan: per lane an Index Scan on live_for_claim that stops at the limit, and one probe of it per rank; pods_open.
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

// Backlog is what waits in a lane.
type Backlog struct {
	Lane          string
	Waiting       int     // at most 100,000
	OldestSeconds float64 // 0: none waits, or only recovered ones
	Pods          int     // that are open, whatever the lane
}

// Fleet tells what waits in each lane; there is always one. It costs the same whatever the backlog and the history.
func Fleet(ctx context.Context, s *store.Store) ([]Backlog, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Backlog], fleetSQL, countedTo)
	if err != nil {
		return nil, fmt.Errorf("count what waits: %w", err)
	}
	return list, nil
}
