package engine

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// This file implements the submission of jobs with a unique or idempotency key, and of jobs in the caller's transaction.

// submitOnce submits a job with a unique or idempotency key, in a separate transaction. After a lost reply, sending the job again is safe,
// because the statement returns the job that holds the key, if there is one.
func (sub *submitter) submitOnce(ctx context.Context, w *work.Submission, n store.NewJob) (s work.Submitted, err error) {
	dueIn := w.Delay + w.Debounce
	err = sub.untilSubmitted(ctx, sub.PodID(), []*store.NewJob{&n}, func(ctx context.Context, _ bool) error {
		return sub.Commands.Tx(ctx, func(tx pgx.Tx) (err error) {
			s, dueIn, err = sub.submitIn(ctx, tx, w, n, false)
			return err
		})
	}, func(places map[int64]store.Place) { s = submitted(n, places) })
	if err != nil {
		return work.Submitted{}, err
	}
	if s.Duplicate {
		// Until now, the lock on the key kept its holder from being claimed. Return that job's current state.
		switch {
		case s.State == job.AwaitingApproval:
			sub.LinesChanged(n.Lines()...) // a job that was sent back has left its lines
		case s.Replaced && dueIn > 0:
			sub.WakeAfter(dueIn)
		case s.Replaced:
			sub.WakeDue()
			sub.WakePeers()
		default:
			sub.Wake()
		}
		if held, err := view.Job(ctx, sub.Commands, s.ID); err == nil {
			s.PipelineID, s.State = held.PipelineID, held.State
		}
		return s, nil
	}
	sub.Metrics.Enqueued.Inc()
	switch {
	case s.State == job.AwaitingApproval:
	case dueIn > 0:
		sub.WakeAfter(dueIn)
	default:
		sub.WakeDue()
		sub.WakePeers()
	}
	return s, nil
}

// submitFresh is like submitIn, for a transaction of the host application. If the job's id is in use and the transaction is still usable, it
// gives the job and its keys another id.
func (sub *submitter) submitFresh(ctx context.Context, tx pgx.Tx, w *work.Submission, n *store.NewJob, wake bool) (work.Submitted, error) {
	s, _, err := sub.submitIn(ctx, tx, w, *n, wake)
	for try := 0; sub.Commands.IDTaken(err) && !store.Refused(err) && try < idTries; try++ {
		if err := sub.renumber(ctx, tx, n); err != nil {
			return work.Submitted{}, err
		}
		if key := w.IdempotencyRow(); key != "" {
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

// submitIn reserves a job's keys and inserts the job as pending in the given transaction. If wake is set, the commit wakes the pods. dueIn is positive
// if the job becomes due after that time.
func (sub *submitter) submitIn(ctx context.Context, tx pgx.Tx, w *work.Submission, n store.NewJob, wake bool) (s work.Submitted, dueIn time.Duration, err error) {
	holder := n.ID
	key := w.IdempotencyRow()
	if key != "" {
		holder, err = store.ReserveSubmission(ctx, sub.Commands, tx, key, n.ID, store.Fingerprint(n))
		if err != nil {
			return s, 0, err
		}
	}
	var r store.Replacement
	if holder == n.ID && w.UniqueKey != nil {
		if holder, r, err = store.TakeKey(ctx, sub.Commands, tx, &n); err != nil {
			return s, 0, err
		}
		if holder != n.ID && key != "" {
			if err := store.AssignSubmission(ctx, sub.Commands, tx, key, holder); err != nil {
				return s, 0, err
			}
		}
	}
	if holder == n.ID {
		s, err = sub.placeIn(ctx, tx, n, wake)
		return s, time.Duration(n.DelayMillis) * time.Millisecond, err
	}
	s = work.Submitted{ID: holder, PipelineID: holder, State: job.Pending, Duplicate: true, Replaced: r.Replaced}
	if r.Awaiting {
		s.State = job.AwaitingApproval
	} else if r.Replaced && wake {
		err = sub.Commands.Notify(ctx, tx) // claims have skipped the job meanwhile
	}
	return s, r.DueIn, err
}

// placeIn inserts a job as pending in a transaction that already holds the job's keys.
func (sub *submitter) placeIn(ctx context.Context, tx pgx.Tx, n store.NewJob, wake bool) (work.Submitted, error) {
	places, err := store.EnqueueIn(ctx, sub.Commands, tx, []store.NewJob{n}, wake)
	if err != nil {
		return work.Submitted{}, err
	}
	if n.ThrottleMillis > 0 {
		err = store.MarkThrottled(ctx, sub.Commands, tx, n.ID)
	}
	return submitted(n, places), err
}

// idTries is the maximum number of times that jobs are given new ids because theirs are already in use. Each time, the ids come from a
// different block.
const idTries = 3

// withFreeIDs inserts jobs again with other ids as long as one of their ids is in use. err is the error of the first attempt.
func (sub *submitter) withFreeIDs(ctx context.Context, tx pgx.Tx, jobs []*store.NewJob, err error, insert func() error) error {
	for try := 0; sub.Commands.IDTaken(err) && try < idTries; try++ {
		if err = sub.renumber(ctx, tx, jobs...); err == nil {
			err = insert()
		}
	}
	return err
}

// renumber gives jobs new ids, also those recorded as in flight, after finding that one of their ids is in use. Another pod may have used the
// id if a failover lost commits without PostgreSQL noticing.
func (sub *submitter) renumber(ctx context.Context, tx pgx.Tx, jobs ...*store.NewJob) error {
	sub.Log.WarnContext(ctx, "job ids already in use, using others", telemetry.JobID, jobs[0].ID, telemetry.Jobs, len(jobs))
	sub.Commands.DropIDs()
	sub.Store.DropIDs()
	ids, err := sub.newIDs(ctx, tx, len(jobs))
	if err != nil {
		return sub.DBError(err)
	}
	for i, n := range jobs {
		if sub.InFlight.Has(n.ID) {
			sub.InFlight.Add(ids[i])
			sub.InFlight.Remove(n.ID)
		}
		n.ID = ids[i]
	}
	return nil
}

func each(list []store.NewJob) []*store.NewJob {
	all := make([]*store.NewJob, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
