package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// hasLaneSQL reports whether a lane exists. It runs first, so that a role without the insert privilege can start if nothing is missing.
	// Plan: primary key lookup.
	hasLaneSQL = `select exists (select from trapeze.lanes where name = $1)`
	// keepsDefaultSQL reports whether the lane default has been changed since the migrations created it. Plan: as for bootDefaultSQL.
	keepsDefaultSQL = `select not exists (select from trapeze.lanes l where l.name = $1 and ` + untouched + `)`
	// untouched holds for the lane default until an operator or a declaration changes it.
	untouched = `l.slots is null and l.slots_per_pod is null and not exists (select from trapeze.audit a where a.target = 'lane default')`
	// bootDefaultSQL sets the limits of the lane default if it is untouched. Plan: primary key lookup; audit_of_target.
	bootDefaultSQL = `update trapeze.lanes l set slots = $2, slots_per_pod = $3 where l.name = $1 and ` + untouched
	// bootLaneSQL creates a lane unless its name is taken. Plan: one insert.
	bootLaneSQL = `insert into trapeze.lanes (name, slots, slots_per_pod) values ($1, $2, $3) on conflict (name) do nothing`
	// bootKindsSQL assigns kinds that have no lane to a new lane. Plan: primary key lookup.
	bootKindsSQL = `
insert into trapeze.lane_kinds (kind, lane) select k, $2 from unnest($1::text[]) as k order by k
on conflict (kind) do nothing returning kind`
)

// BootLane is a lane that a program declares. Settings in the database override the declaration.
type BootLane struct {
	Name  string
	Slots *int // limit across all pods, or nil for no limit
	Kinds []string
	// SlotsPerPod limits how many of the lane's jobs a pod runs concurrently. Nil means no limit.
	SlotsPerPod *int
}

// Bootstrap creates a lane, and assigns to it the declared kinds that have no lane yet. If the name is taken, it does nothing. The lane
// default, if it exists, is taken once its settings have been changed. Bootstrap reports whether it created the lane, and which kinds it
// did not assign. Several pods can safely call it concurrently.
func Bootstrap(ctx context.Context, s *store.Store, l BootLane) (made bool, left []string, err error) {
	create := bootLaneSQL
	keep, err := store.Rows(ctx, s, pgx.RowTo[bool], hasLaneSQL, l.Name)
	if err == nil && keep[0] && l.Name == job.DefaultLane && (l.Slots != nil || l.SlotsPerPod != nil || len(l.Kinds) > 0) {
		create = bootDefaultSQL
		keep, err = store.Rows(ctx, s, pgx.RowTo[bool], keepsDefaultSQL, l.Name)
	}
	if err != nil || keep[0] {
		return false, nil, err
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		made, left = false, nil
		tag, err := tx.Exec(ctx, s.In(create), l.Name, l.Slots, l.SlotsPerPod)
		if made = err == nil && tag.RowsAffected() == 1; !made {
			return err
		}
		got, err := store.Query(ctx, s, tx, pgx.RowTo[string], bootKindsSQL, l.Kinds, l.Name)
		if err != nil {
			return err
		}
		left = without(l.Kinds, got)
		after, err := store.QueryOne[job.Lane](ctx, s, tx, nil, lockLaneSQL, l.Name)
		if err != nil {
			return err
		}
		return operates(ctx, s, tx, operation{
			AuditEntry: AuditEntry{Actor: "system", Action: "lane.set", Target: "lane " + l.Name, After: after},
			Event:      "lane.changed", About: l.Name,
		})
	})
	if err != nil {
		return false, nil, fmt.Errorf("bootstrap lane %q: %w", l.Name, err)
	}
	return made, left, nil
}

// without returns the elements of all that are not in some.
func without[T comparable](all, some []T) (rest []T) {
	have := map[T]bool{}
	for _, one := range some {
		have[one] = true
	}
	for _, one := range all {
		if !have[one] {
			rest = append(rest, one)
		}
	}
	return rest
}
