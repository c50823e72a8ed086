package admin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// createLaneSQL creates a lane with default settings. Plan: one insert.
	createLaneSQL = `insert into trapeze.lanes (name) values ($1) on conflict (name) do nothing`
	// lockLaneSQL reads a lane's settings and locks them until the transaction ends. Plan: primary key lookup.
	lockLaneSQL = `
select n.name, n.slots, n.slots_per_pod, n.stale_after_s, n.max_age_s, n.requires_approval, n.four_eyes, n.enabled, n.drained, n.engine, n.next_engine,
	array(select k.kind from trapeze.lane_kinds k where k.lane = n.name order by k.kind) as kinds
from trapeze.lanes n where n.name = $1 for update of n`
	// setLaneSQL changes a lane's settings. The caller has locked its row. Plan: primary key lookup; HOT update.
	setLaneSQL = `
update trapeze.lanes set slots = $2, slots_per_pod = $3, stale_after_s = $4, max_age_s = $5,
	requires_approval = $6, four_eyes = $7, enabled = $8, next_engine = $9, heard = case when next_engine is not distinct from $9 then heard end
where name = $1`
	// engineServedSQL reports whether an open pod serves an engine. Plan: one pass over pods, which is small.
	engineServedSQL = `select exists (select from trapeze.pods p where p.closed_at is null and $1 = any(p.engines))`
	// laneJobsSQL counts a lane's running and due jobs. Plan: live_for_claim and parked_of_lane, the lane's rows.
	laneJobsSQL = `
select count(*) filter (where state = 'running')::int, count(*) filter (where state = 'pending')::int
	+ (select count(*)::int from trapeze.parked p where p.lane = $1 and p.why = 'subject')
from trapeze.live where lane = $1`
)

// SetLane creates or changes a lane, and makes it the default lane of the given kinds. If the default lane of a kind changes, the kind's
// due and parked jobs must be moved: the caller passes the returned moves to [Move]. If nothing changes, SetLane writes no audit entry and
// no event. It returns [job.ErrUnknownLane] if c requires an existing lane and there is none, [job.ErrInvalidSetting] if a setting is
// invalid, and [job.ErrNoEngine] if no open pod serves the new engine.
func SetLane(ctx context.Context, s *store.Store, name string, c job.LaneChange, actor string) (done job.LaneChanged, moves []Moving, err error) {
	err = c.Validate()
	if err == nil {
		err = s.Tx(ctx, func(tx pgx.Tx) error {
			done, moves, err = setLaneIn(ctx, s, tx, name, c, actor)
			if err == nil && c.DryRun {
				return errDry
			}
			return err
		})
	}
	if err != nil && !errors.Is(err, errDry) {
		return job.LaneChanged{}, nil, fmt.Errorf("%w (set lane %q)", err, name)
	}
	return done, moves, nil
}

func setLaneIn(ctx context.Context, s *store.Store, tx pgx.Tx, name string, c job.LaneChange, actor string) (done job.LaneChanged, moves []Moving, err error) {
	done = job.LaneChanged{Lane: name, DryRun: c.DryRun, Changed: []string{}}
	if done.Created, err = createLane(ctx, s, tx, name, c.Existing); err != nil {
		return done, nil, err
	}
	before, err := store.QueryOne[job.Lane](ctx, s, tx, job.ErrUnknownLane, lockLaneSQL, name)
	if err != nil {
		return done, nil, err
	}
	after := c.Apply(before)
	if after.FourEyes && !after.RequiresApproval {
		return done, nil, fmt.Errorf("%w: four_eyes of a lane whose jobs need no approval: set requires_approval too", job.ErrInvalidSetting)
	}
	if err := checkEngine(ctx, s, tx, before, after); err != nil {
		return done, nil, err
	}
	done.Before, done.After, done.Changed = &before, &after, changedFields(before, after)
	if done.Created {
		done.Before = nil
	}
	if _, err := tx.Exec(ctx, s.In(setLaneSQL), name, after.Slots, after.SlotsPerPod, after.StaleAfter, after.MaxAge,
		after.RequiresApproval, after.FourEyes, after.Enabled, after.NextEngine); err != nil {
		return done, nil, err
	}
	if c.Kinds != nil {
		if moves, err = giveKinds(ctx, s, tx, name, after.Kinds); err != nil {
			return done, nil, err
		}
	}
	if err := countJobs(ctx, s, tx, &done, moves); err != nil {
		return done, nil, err
	}
	if !done.Created && len(done.Changed) == 0 {
		return done, moves, nil
	}
	return done, moves, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "lane.set", Target: "lane " + name, Before: done.Before, After: done.After},
		Event:      "lane.changed", About: name,
	})
}

// checkEngine returns [job.ErrNoEngine] if a change moves a lane to an engine that no open pod serves.
func checkEngine(ctx context.Context, s *store.Store, tx pgx.Tx, before, after job.Lane) error {
	if after.NextEngine == nil || *after.NextEngine == job.EnginePostgreSQL || before.NextEngine != nil && *before.NextEngine == *after.NextEngine {
		return nil
	}
	served, err := store.QueryOne[struct{ Served bool }](ctx, s, tx, nil, engineServedSQL, *after.NextEngine)
	if err == nil && !served.Served {
		err = fmt.Errorf("%w %s: start a pod whose program registers it", job.ErrNoEngine, *after.NextEngine)
	}
	return err
}

// createLane creates a lane if it does not exist. If existing is set, it never creates one.
func createLane(ctx context.Context, s *store.Store, tx pgx.Tx, name string, existing bool) (created bool, err error) {
	if existing {
		return false, nil
	}
	if err := job.ValidateLaneName(name); err != nil {
		// An old lane, or one inserted through SQL, may have any name.
		_, unknown := store.QueryOne[job.Lane](ctx, s, tx, err, lockLaneSQL, name)
		return false, unknown
	}
	tag, err := tx.Exec(ctx, s.In(createLaneSQL), name)
	return err == nil && tag.RowsAffected() == 1, err
}

// countJobs counts the running and due jobs in a lane, and the jobs that must be moved.
func countJobs(ctx context.Context, s *store.Store, tx pgx.Tx, done *job.LaneChanged, moves []Moving) error {
	type jobs struct{ Running, Waiting int }
	n, err := store.QueryOne[jobs](ctx, s, tx, nil, laneJobsSQL, done.Lane)
	if err != nil {
		return err
	}
	done.Running, done.Waiting = n.Running, n.Waiting
	for _, m := range moves {
		n, err := countMoves(ctx, s, tx, m)
		if err != nil {
			return err
		}
		done.Moved += n
	}
	return nil
}

// changedFields returns the JSON names of the settings that differ between two lanes or two schedules.
func changedFields[T any](a, b T) []string {
	names := []string{}
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		kinds, ok := x.Field(i).Interface().([]string)
		same := ok && slices.Equal(kinds, y.Field(i).Interface().([]string)) || !ok && reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface())
		if !same {
			names = append(names, x.Type().Field(i).Tag.Get("json"))
		}
	}
	return names
}
