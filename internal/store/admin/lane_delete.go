package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// waitingInLaneSQL reports whether a lane has any due or parked jobs. Plan: live_for_claim up to its first pending row; parked up to
	// the lane's first row, at worst one full pass.
	waitingInLaneSQL = `
select exists (select from trapeze.live where lane = $1 and state = 'pending')
	or exists (select from trapeze.parked where lane = $1)`
	// moveKindsSQL assigns a lane's kinds to another lane. Plan: one pass over lane_kinds, which is small.
	moveKindsSQL = `update trapeze.lane_kinds set lane = $2 where lane = $1`
	// deleteLaneSQL deletes a lane that has no kinds. Plan: primary key lookup; the lane's slot_grants are deleted with it.
	deleteLaneSQL = `delete from trapeze.lanes where name = $1`
)

// DeleteLane deletes a lane, and moves its due and parked jobs and its kinds to the lane named to. If to is empty, the lane must have no
// jobs, and its kinds move to the default lane. Running jobs in the lane continue. Callers should call [Move] first, so that few jobs are
// left for this transaction. It returns [job.ErrUnknownLane] if either lane does not exist, [job.ErrLaneNotEmpty] if jobs remain in the
// lane, and [job.ErrInvalidSetting] if name is the default lane or if to names the same lane.
func DeleteLane(ctx context.Context, s *store.Store, name, to, actor string, dry bool) (done job.LaneChanged, err error) {
	var moved []store.Key
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		moved = nil
		done, err = deleteLaneIn(ctx, s, tx, name, to, actor, &moved)
		if err == nil && dry {
			done.DryRun = true
			return errDry
		}
		return err
	})
	if err != nil && !errors.Is(err, errDry) {
		return job.LaneChanged{}, fmt.Errorf("delete lane %q: %w", name, err)
	}
	_ = admitMoved(ctx, s, moved) // also after a dry run, which has locked the jobs; after an error, polls do the same
	return done, nil
}

func deleteLaneIn(ctx context.Context, s *store.Store, tx pgx.Tx, name, to, actor string, moved *[]store.Key) (done job.LaneChanged, err error) {
	done = job.LaneChanged{Lane: name, Changed: []string{}}
	if name == job.DefaultLane {
		return done, fmt.Errorf("%w: lane %q cannot be deleted", job.ErrInvalidSetting, name)
	}
	if name == to {
		return done, fmt.Errorf("%w: move the jobs of lane %q to another lane", job.ErrInvalidSetting, name)
	}
	target := to // target lane for the kinds
	if to == "" {
		target = job.DefaultLane
	}
	var before job.Lane
	lanes := []string{name, target}
	slices.Sort(lanes) // every transaction locks lanes in this order
	for _, one := range lanes {
		lane, err := store.QueryOne[job.Lane](ctx, s, tx, fmt.Errorf("%w: %q", job.ErrUnknownLane, one), lockLaneSQL, one)
		if err != nil {
			return done, err
		}
		if one == name {
			before = lane
		}
	}
	done.Before = &before
	m := Moving{From: name, To: to}
	if err := countJobs(ctx, s, tx, &done, []Moving{m}); err != nil {
		return done, err
	}
	if err := emptyLane(ctx, s, tx, m, done.Running, actor, moved); err != nil {
		return done, err
	}
	if _, err := tx.Exec(ctx, s.In(moveKindsSQL), name, target); err != nil {
		return done, err
	}
	if _, err := tx.Exec(ctx, s.In(deleteLaneSQL), name); err != nil {
		return done, err
	}
	return done, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "lane.delete", Target: "lane " + name, Before: before},
		Event:      "lane.changed", About: name,
	})
}

// emptyLane moves a lane's due and parked jobs to the target lane, if there is one, and adds their subjects to moved.
func emptyLane(ctx context.Context, s *store.Store, tx pgx.Tx, m Moving, running int, actor string, moved *[]store.Key) error {
	if m.To == "" && running > 0 {
		return job.ErrLaneNotEmpty
	}
	for _, sql := range []string{moveLiveSQL, moveParkedSQL} {
		for after := int64(0); m.To != ""; {
			p, err := moveNextPage(ctx, s, tx, sql, m, after, actor)
			if err != nil {
				return err
			}
			*moved = append(*moved, p.Keys...)
			if after = p.Last; p.Seen < movePage {
				break
			}
		}
	}
	waits, err := store.Query(ctx, s, tx, pgx.RowTo[bool], waitingInLaneSQL, m.From)
	if err == nil && waits[0] {
		err = job.ErrLaneNotEmpty // if there is a target lane, the remaining jobs were skipped because their rows are locked
	}
	return err
}

// strandedSQL lists lanes that have due jobs but do not exist. This happens if a lane is deleted while a job is being submitted to it, or
// if a job that was running in it becomes pending again after the deletion. It finds other parked jobs once they are due. Plan: one
// lookup in live_for_claim and parked_of_lane for each lane name in them.
const strandedSQL = `
with recursive names(lane) as (
	select ''
	union all
	select least((select l.lane from trapeze.live l where l.lane > n.lane order by l.lane, (-l.priority), l.ready_at, l.id limit 1),
		(select p.lane from trapeze.parked p where p.why = 'subject' and p.lane > n.lane order by p.lane, (-p.priority), p.run_after, p.id limit 1))
	from names n where n.lane is not null
)
select n.lane from names n
where n.lane <> '' and not exists (select from trapeze.lanes a where a.name = n.lane)
	and (exists (select from trapeze.live l where l.lane = n.lane and l.state = 'pending')
		or exists (select from trapeze.parked p where p.lane = n.lane and p.why = 'subject'))`

// MoveStranded moves due jobs from lanes that do not exist to the lanes of their kinds, and returns how many it moved. Several pods can
// safely call it concurrently.
func MoveStranded(ctx context.Context, s *store.Store) (total int, err error) {
	lanes, err := store.Rows(ctx, s, pgx.RowTo[string], strandedSQL)
	if err != nil {
		return 0, fmt.Errorf("find jobs of lanes that do not exist: %w", err)
	}
	for _, lane := range lanes {
		moved, _, err := Move(ctx, s, Moving{From: lane}, "system")
		total += moved
		if err != nil {
			return total, err
		}
	}
	return total, nil
}
