package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// This file implements the submission of jobs with a unique or idempotency key, and of jobs in the caller's transaction.

// errUnderWay means that the submission must be resent.
var errUnderWay = errors.New("a concurrent attempt of the same submission is running")

// unknownYet reports whether err leaves the outcome unknown after a lost reply.
func unknownYet(err error) bool {
	return store.Unknown(err) || store.Transient(err) || errors.Is(err, errUnderWay)
}

// submitOnce submits a job with a unique or idempotency key, in a separate transaction.
func (sub *submitter) submitOnce(ctx context.Context, w *work.Submission, n store.NewJob) (work.Submitted, error) {
	var s work.Submitted
	submit := func(tx pgx.Tx) (err error) {
		s, err = sub.submitFresh(ctx, tx, w, &n, false)
		return err
	}
	err := sub.Commands.Tx(ctx, submit)
	for try := 0; sub.Commands.IDTaken(err) && try < idTries; try++ {
		if err = sub.renumber(ctx, sub.ownPool(), &n); err == nil {
			err = sub.Commands.Tx(ctx, submit)
		}
	}
	if store.Unknown(err) {
		// Sending the job again is safe, because the statement returns the job that holds the key, if there is one.
		retry, cancel := context.WithTimeout(context.WithoutCancel(ctx), sub.Opts.LeaseFor)
		defer cancel()
		taken := false
		for backoff := routine.NewBackoff(); unknownYet(err) && backoff.Wait(retry); {
			ours, unread := sub.Commands.Submitted(retry, []store.NewJob{n})
			if unread != nil {
				continue
			}
			if ours[n.ID] {
				s, err = work.Submitted{ID: n.ID, PipelineID: n.ID, State: sub.stateOf(retry, n.ID)}, nil
				break
			}
			if taken && sub.renumber(retry, sub.ownPool(), &n) != nil {
				continue
			}
			taken = false
			err = sub.Commands.Tx(retry, func(tx pgx.Tx) (err error) {
				s, err = sub.submitIn(retry, tx, w, n, false)
				if taken = sub.Commands.IDTaken(err); taken || store.Refused(err) {
					err = errUnderWay // either the first attempt has succeeded in the meantime, or another job has this id
				}
				return err
			})
		}
		if unknownYet(err) {
			return work.Submitted{}, fmt.Errorf("%w (submit %s): %w", job.ErrOutcomeUnknown, w.Kind, err)
		}
	}
	if err != nil {
		return work.Submitted{}, sub.DBError(err)
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

// submitFresh is like submitIn, but for a job that has not been sent before. If the job's id is in use and the transaction is still usable,
// submitFresh retries with a new id.
func (sub *submitter) submitFresh(ctx context.Context, tx pgx.Tx, w *work.Submission, n *store.NewJob, wake bool) (work.Submitted, error) {
	s, err := sub.submitIn(ctx, tx, w, *n, wake)
	for try := 0; sub.Commands.IDTaken(err) && !store.Refused(err) && try < idTries; try++ {
		if err := sub.renumber(ctx, sub.inTx(tx), n); err != nil {
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
	insert := store.EnqueueIn
	if wake {
		insert = store.EnqueueAndWakeIn
	}
	places, err := insert(ctx, sub.Commands, tx, []store.NewJob{n})
	if err != nil {
		return work.Submitted{}, err
	}
	s := work.Submitted{ID: n.ID, PipelineID: n.ID, State: job.Pending}
	if places[n.ID] == store.PlacedAwaiting {
		s.State = job.AwaitingApproval
	}
	return s, nil
}
