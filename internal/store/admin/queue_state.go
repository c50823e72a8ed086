package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// queueStateRowSQL inserts the queue state's row if it was deleted. A missing row counts as paused. Plan: one insert.
	queueStateRowSQL = `insert into trapeze.queue_state (paused) values (true) on conflict (one) do nothing`
	// lockQueueStateSQL reads the queue state and locks it until the transaction ends. Plan: one row.
	lockQueueStateSQL = `select paused, frozen from trapeze.queue_state for update`
	setQueueStateSQL  = `update trapeze.queue_state set paused = $1, frozen = $2`
)

// Pause pauses the queue if closed is set, and resumes it otherwise. It reports whether the state changed. A frozen queue stays frozen.
func Pause(ctx context.Context, s *store.Store, closed bool, actor string) (bool, error) {
	action, event := "queue_state.resume", "queue_state.resumed"
	if closed {
		action, event = "queue_state.pause", "queue_state.paused"
	}
	return changeQueueState(ctx, s, action, event, actor, "paused", func(g job.QueueState) job.QueueState { g.Paused = closed; return g })
}

// Freeze freezes the queue for maintenance if closed is set, and thaws it otherwise. It reports whether the state changed. A paused queue
// stays paused.
func Freeze(ctx context.Context, s *store.Store, closed bool, actor string) (bool, error) {
	action, event := "queue_state.unfreeze", "queue_state.unfrozen"
	if closed {
		action, event = "queue_state.freeze", "queue_state.frozen"
	}
	return changeQueueState(ctx, s, action, event, actor, "frozen", func(g job.QueueState) job.QueueState { g.Frozen = closed; return g })
}

func changeQueueState(ctx context.Context, s *store.Store, action, event, actor, about string, move func(job.QueueState) job.QueueState) (changed bool, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.In(queueStateRowSQL)); err != nil {
			return err
		}
		before, err := store.QueryOne[job.QueueState](ctx, s, tx, nil, lockQueueStateSQL)
		if err != nil {
			return err
		}
		after := move(before)
		if changed = after != before; !changed {
			return nil
		}
		if _, err := tx.Exec(ctx, s.In(setQueueStateSQL), after.Paused, after.Frozen); err != nil {
			return err
		}
		return operates(ctx, s, tx, operation{AuditEntry: AuditEntry{Actor: actor, Action: action, Target: "queue_state", Before: before, After: after}, Event: event, About: about})
	})
	return changed, text.Wrap(err, "%s", action)
}

const (
	// runningSQL counts running jobs: all of them, those in a lane, or those on the given pods. Plan: one pass over live, or over the
	// lane's rows in it.
	runningSQL = `
select count(*)::int from trapeze.live
where state = 'running' and ($1::text is null or lane = $1) and ($2::uuid[] is null or pod = any($2::uuid[]))`
	// beatsSQL reads the lease expiry of each open pod. A later expiry means that the pod has sent another heartbeat. Plan: pods_open.
	beatsSQL = `select id::text, lease_until::text from trapeze.pods where closed_at is null and ($1::uuid[] is null or id = any($1::uuid[]))`
)

// Scope selects a lane or a set of pods. The zero value selects everything.
type Scope struct {
	Lane   string
	PodIDs []string
}

// Running returns the number of running jobs, and the lease expiry of each pod that may start more jobs. Once a pod's lease expiry has
// changed twice, the pod has applied everything that was committed before the first call. The jobs are counted last, so that the count
// includes jobs that started before their pod applied a change.
func Running(ctx context.Context, s *store.Store, of Scope) (running int, leases map[string]string, err error) {
	beats, err := store.Rows(ctx, s, pgx.RowToStructByPos[beat], beatsSQL, of.PodIDs)
	if err == nil {
		running, err = view.One(store.Rows(ctx, s, pgx.RowTo[int], runningSQL, store.Some(of.Lane), of.PodIDs))
	}
	return running, leasesOf(beats), text.Wrap(err, "count running jobs")
}

// runningIn is like [Running], in a transaction.
func runningIn(ctx context.Context, s *store.Store, tx pgx.Tx, of Scope) (running int, leases map[string]string, err error) {
	beats, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[beat], beatsSQL, of.PodIDs)
	if err == nil {
		running, err = view.One(store.Query(ctx, s, tx, pgx.RowTo[int], runningSQL, store.Some(of.Lane), of.PodIDs))
	}
	return running, leasesOf(beats), text.Wrap(err, "count running jobs")
}

// beat is an open pod's lease.
type beat struct{ PodID, Until string }

func leasesOf(beats []beat) map[string]string {
	leases := make(map[string]string, len(beats))
	for _, b := range beats {
		leases[b.PodID] = b.Until
	}
	return leases
}

// drainLaneSQL closes or reopens a lane whose row is locked. Plan: primary key lookup; HOT update.
const drainLaneSQL = `update trapeze.lanes set drained = $2 where name = $1`

// DrainLane closes a lane if drained is set, and reopens it otherwise. It reports whether the lane's state changed. It returns
// [job.ErrUnknownLane] if the lane does not exist.
func DrainLane(ctx context.Context, s *store.Store, name string, drained bool, actor string) (changed bool, err error) {
	action, event := "lane.undrain", "lane.undrained"
	if drained {
		action, event = "lane.drain", "lane.drained"
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		before, err := store.QueryOne[job.Lane](ctx, s, tx, job.ErrUnknownLane, lockLaneSQL, name)
		if err == nil && job.IsLaneTemplate(name) {
			return fmt.Errorf("%w: lane %q is a template: drain its lanes, or set enabled=false", job.ErrInvalidSetting, name)
		}
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
	return changed, text.Wrap(err, "%s %q", action, name)
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
	action, event := "pod.undrain", "pod.undrained"
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
	return changed, podIDs, text.Wrap(err, "%s %q", action, pod)
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
