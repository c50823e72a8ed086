package engine

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// This file implements the submission of jobs with a unique or idempotency key, and of jobs in the caller's transaction.

// submitOnce submits a job with a unique or idempotency key, in a separate transaction. After a lost reply, sending the job again is safe,
// because the statement returns the job that holds the key, if there is one.
func (sub *submitter) submitOnce(ctx context.Context, w *work.Submission, n store.NewJob) (s work.Submitted, err error) {
	err = sub.untilSubmitted(ctx, sub.PodID(), []*store.NewJob{&n}, func(ctx context.Context, _ bool) error {
		return sub.Commands.Tx(ctx, func(tx pgx.Tx) (err error) {
			s, err = sub.submitIn(ctx, tx, w, n, false)
			return err
		})
	}, func(places map[int64]store.Place) { s = submitted(n, places) })
	if err != nil {
		return work.Submitted{}, err
	}
	if s.Duplicate {
		// Until now, the lock on the key kept its holder from being claimed. Return that job's current state.
		sub.Wake()
		if held, err := view.Job(ctx, sub.Commands, s.ID); err == nil {
			s.PipelineID, s.State = held.PipelineID, held.State
		}
		return s, nil
	}
	sub.Metrics.Enqueued.Inc()
	switch {
	case s.State == job.AwaitingApproval:
	case n.DelayMillis > 0:
		sub.WakeAfter(w.Delay)
	default:
		sub.WakeDue()
		sub.WakePeers()
	}
	return s, nil
}

// submitFresh is like submitIn, for a transaction of the host application. If the job's id is in use and the transaction is still usable, it
// gives the job and its keys another id.
func (sub *submitter) submitFresh(ctx context.Context, tx pgx.Tx, w *work.Submission, n *store.NewJob, wake bool) (work.Submitted, error) {
	s, err := sub.submitIn(ctx, tx, w, *n, wake)
	for try := 0; sub.Commands.IDTaken(err) && !store.Refused(err) && try < idTries; try++ {
		if err := sub.renumber(ctx, tx, n); err != nil {
			return work.Submitted{}, err
		}
		if key := w.Key(); key != "" {
			if err := store.AssignSubmission(ctx, sub.Commands, tx, key, n.ID); err != nil {
				return work.Submitted{}, err
			}
		}
		if w.UniqueKey != nil {
			if err := store.AssignKey(ctx, sub.Commands, tx, n.Kind, *w.UniqueKey, n.ID); err != nil {
				return work.Submitted{}, err
			}
		}
		s, err = sub.placeIn(ctx, tx, *n, wake)
	}
	return s, err
}

// submitIn reserves a job's keys and inserts the job as pending in the given transaction. If wake is set, the commit wakes the pods.
func (sub *submitter) submitIn(ctx context.Context, tx pgx.Tx, w *work.Submission, n store.NewJob, wake bool) (work.Submitted, error) {
	holder, err := n.ID, error(nil)
	key := w.Key()
	if key != "" {
		holder, err = store.ReserveSubmission(ctx, sub.Commands, tx, key, n.ID, store.Fingerprint(n))
		if err != nil {
			return work.Submitted{}, err
		}
	}
	if holder == n.ID && w.UniqueKey != nil {
		if holder, err = store.ReserveKey(ctx, sub.Commands, tx, n.Kind, *w.UniqueKey, n.ID); err != nil {
			return work.Submitted{}, err
		}
		if holder != n.ID && key != "" {
			if err := store.AssignSubmission(ctx, sub.Commands, tx, key, holder); err != nil {
				return work.Submitted{}, err
			}
		}
	}
	if holder != n.ID {
		return work.Submitted{ID: holder, PipelineID: holder, State: job.Pending, Duplicate: true}, nil
	}
	return sub.placeIn(ctx, tx, n, wake)
}

// placeIn inserts a job as pending in a transaction that already holds the job's keys.
func (sub *submitter) placeIn(ctx context.Context, tx pgx.Tx, n store.NewJob, wake bool) (work.Submitted, error) {
	places, err := store.EnqueueIn(ctx, sub.Commands, tx, []store.NewJob{n}, wake)
	if err != nil {
		return work.Submitted{}, err
	}
	return submitted(n, places), nil
}
