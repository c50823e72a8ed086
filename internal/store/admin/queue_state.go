package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
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
	action, event := "queue_state.unpause", "queue_state.unpaused"
	if closed {
		action, event = "queue_state.pause", "queue_state.paused"
	}
	return changeQueueState(ctx, s, action, event, actor, "paused", func(g job.QueueState) job.QueueState { g.Paused = closed; return g })
}

// Freeze freezes the queue for maintenance if closed is set, and thaws it otherwise. It reports whether the state changed. A paused queue
// stays paused.
func Freeze(ctx context.Context, s *store.Store, closed bool, actor string) (bool, error) {
	action, event := "queue_state.thaw", "queue_state.thawed"
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
	if err != nil {
		return false, fmt.Errorf("%s: %w", action, err)
	}
	return changed, nil
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
	return runningOf(func(sql string, args ...any) ([]beat, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[beat], sql, args...)
	}, func(sql string, args ...any) ([]int, error) { return store.Rows(ctx, s, pgx.RowTo[int], sql, args...) }, of)
}

// runningIn is like [Running], in a transaction.
func runningIn(ctx context.Context, s *store.Store, tx pgx.Tx, of Scope) (running int, leases map[string]string, err error) {
	return runningOf(func(sql string, args ...any) ([]beat, error) {
		return store.Query(ctx, s, tx, pgx.RowToStructByPos[beat], sql, args...)
	}, func(sql string, args ...any) ([]int, error) {
		return store.Query(ctx, s, tx, pgx.RowTo[int], sql, args...)
	}, of)
}

// beat is an open pod's lease.
type beat struct {
	PodID string
	Until string
}

func runningOf(beats func(string, ...any) ([]beat, error), counts func(string, ...any) ([]int, error), of Scope) (running int, leases map[string]string, err error) {
	list, err := beats(beatsSQL, of.PodIDs)
	if err != nil {
		return 0, nil, fmt.Errorf("count running jobs: %w", err)
	}
	leases = make(map[string]string, len(list))
	for _, b := range list {
		leases[b.PodID] = b.Until
	}
	n, err := counts(runningSQL, store.Some(of.Lane), of.PodIDs)
	if err != nil {
		return 0, nil, fmt.Errorf("count running jobs: %w", err)
	}
	return n[0], leases, nil
}
