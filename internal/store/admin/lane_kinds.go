package admin

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// lockKindsSQL reads the default lanes of the given kinds and of all kinds assigned to the given lane, and locks them until the
	// transaction ends. Plan: one pass over lane_kinds, which is small.
	lockKindsSQL = `select kind, lane from trapeze.lane_kinds where kind = any($1::text[]) or lane = $2 order by kind for update`
	// giveKindsSQL makes a lane the default lane of the given kinds. Plan: primary key lookup.
	giveKindsSQL = `
insert into trapeze.lane_kinds (kind, lane) select k, $2 from unnest($1::text[]) as k order by k
on conflict (kind) do update set lane = excluded.lane where lane_kinds.lane <> excluded.lane`
	// dropKindsSQL resets the kinds' default lane to the lane named default. Plan: primary key lookup.
	dropKindsSQL = `delete from trapeze.lane_kinds where kind = any($1::text[])`
)

// giveKinds makes a lane the default lane of exactly the given kinds. It returns the moves needed for jobs that are now in the wrong lane.
func giveKinds(ctx context.Context, s *store.Store, tx pgx.Tx, lane string, kinds []string) (moves []Moving, err error) {
	was, err := lanesOfKinds(ctx, s, tx, kinds, lane)
	if err != nil {
		return nil, err
	}
	add := func(kind, from, to string) {
		if from != to {
			moves = append(moves, Moving{From: from, Kinds: []string{kind}, To: to})
		}
	}
	for _, kind := range kinds {
		from := was[kind]
		if from == "" {
			from = job.DefaultLane
		}
		add(kind, from, lane)
		delete(was, kind)
	}
	var dropped []string // the remaining kinds belonged to this lane
	for kind, from := range was {
		dropped = append(dropped, kind)
		add(kind, from, job.DefaultLane)
	}
	if _, err := tx.Exec(ctx, s.In(giveKindsSQL), kinds, lane); err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, s.In(dropKindsSQL), dropped)
	return moves, err
}

// lanesOfKinds returns the default lanes of the given kinds and of all kinds assigned to the given lane.
func lanesOfKinds(ctx context.Context, s *store.Store, tx pgx.Tx, kinds []string, lane string) (map[string]string, error) {
	list, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[store.LaneKind], lockKindsSQL, kinds, lane)
	if err != nil {
		return nil, err
	}
	lanes := make(map[string]string, len(list))
	for _, k := range list {
		lanes[k.Kind] = k.Lane
	}
	return lanes, nil
}
