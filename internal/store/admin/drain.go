package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// drainLaneSQL closes or reopens a lane whose row is locked. Plan: primary key lookup; HOT update.
const drainLaneSQL = `update trapeze.lanes set drained = $2 where name = $1`

// DrainLane closes a lane if drained is set, and reopens it otherwise. It reports whether the lane's state changed. It returns
// [job.ErrUnknownLane] if the lane does not exist.
func DrainLane(ctx context.Context, s *store.Store, name string, drained bool, actor string) (changed bool, err error) {
	action, event := "lane.resume", "lane.resumed"
	if drained {
		action, event = "lane.drain", "lane.drained"
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		before, err := store.QueryOne[job.Lane](ctx, s, tx, job.ErrUnknownLane, lockLaneSQL, name)
		if changed = err == nil && before.Drained != drained; err != nil || !changed {
			return err
		}
		if _, err := tx.Exec(ctx, s.In(drainLaneSQL), name, drained); err != nil {
			return err
		}
		return operates(ctx, s, tx, operation{
			AuditEntry: AuditEntry{Actor: actor, Action: action, Target: "lane " + name, Before: drains{before.Drained}, After: drains{drained}},
			Event:      event, About: name,
		})
	})
	if err != nil {
		return false, fmt.Errorf("%s %q: %w", action, name, err)
	}
	return changed, nil
}

// drains is the value before or after a drain, as recorded in the audit entry.
type drains struct {
	Drained bool `json:"drained"`
}

const (
	// lockPodsSQL finds and locks a pod's rows by its name or id. It includes closed rows, because the next process with the same name
	// inherits the drained state from them. Plan: one pass over pods, which is small.
	lockPodsSQL = `
select p.id::text, p.name, p.drained, p.closed_at is null as open from trapeze.pods p
where p.name = $1 or p.id::text = $1 order by p.id for update`
	drainPodsSQL = `update trapeze.pods set drained = $2 where id = any($1::uuid[]) and drained <> $2`
)

// DrainPod drains or resumes all pods with the given name, or the pod with the given id. It reports whether any pod's state changed,
// and returns the ids of the open pods. It returns [job.ErrUnknownPod] if there is no such pod.
func DrainPod(ctx context.Context, s *store.Store, pod string, drained bool, actor string) (changed bool, podIDs []string, err error) {
	action, event := "pod.resume", "pod.resumed"
	if drained {
		action, event = "pod.drain", "pod.drained"
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		changed, podIDs = false, nil
		found, err := lockPods(ctx, s, tx, pod)
		if err != nil {
			return err
		}
		var all []string
		for _, p := range found {
			if all = append(all, p.PodID); p.Open {
				podIDs = append(podIDs, p.PodID)
			}
			changed = changed || p.Drained != drained
		}
		if len(found) == 0 || drained && len(podIDs) == 0 {
			return job.ErrUnknownPod
		}
		if !changed {
			return nil
		}
		if _, err := tx.Exec(ctx, s.In(drainPodsSQL), all, drained); err != nil {
			return err
		}
		return operates(ctx, s, tx, operation{
			AuditEntry: AuditEntry{Actor: actor, Action: action, Target: "pod " + found[0].Name, Before: drains{!drained}, After: drains{drained}},
			PodID:      &found[0].PodID, Event: event, About: found[0].Name,
		})
	})
	if err != nil {
		return false, nil, fmt.Errorf("%s %q: %w", action, pod, err)
	}
	return changed, podIDs, nil
}

// podRow holds the columns that are needed to drain a pod.
type podRow struct {
	PodID, Name   string
	Drained, Open bool
}

// lockPods locks a pod's rows, if there are any. A process with the same name that registers concurrently locks the row from which it
// inherits the drained state, and only a later statement sees that process's new row. lockPods therefore repeats the search until it finds
// no more rows.
func lockPods(ctx context.Context, s *store.Store, tx pgx.Tx, pod string) (found []podRow, err error) {
	for {
		list, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[podRow], lockPodsSQL, pod)
		if err != nil || len(list) == len(found) {
			return list, err
		}
		found = list
	}
}
