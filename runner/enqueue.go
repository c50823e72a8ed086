package runner

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Submitted is what a submission came to.
type Submitted struct {
	ID         int64 // of the job
	PipelineID int64
	State      job.State
	Duplicate  bool // the job of an earlier submission with the same unique or idempotency key
}

// Enqueue submits a job. When a slot of its lane is free in this pod, nothing that goes before it
// waits there, and its subject is free, the job is born running and starts at once, here; else it is pending, and whoever
// has a slot claims it.
//
// Errors: [job.ErrUnknownKind], [job.ErrUnknownLane], [job.ErrInvalidArgs], [job.ErrTooLarge], [job.ErrInvalid],
// [job.ErrKeyReused]; and [job.ErrOutcomeUnknown] when the connection was lost and the database could not be asked what
// came of it: give an [IdempotencyKey] to be able to submit again. Safe for concurrent use, also before [Runner.Run].
func (r *Runner) Enqueue(ctx context.Context, args job.Args, options ...EnqueueOption) (Submitted, error) {
	w, err := encodeSubmission(args, options)
	if err != nil {
		return Submitted{}, err
	}
	s, err := r.pod.Submit(ctx, w)
	return Submitted(s), err
}

// EnqueueTx submits a job in the caller's transaction: it exists if and only if that commits. It is pending, or awaits
// approval, and wakes the pods that listen when the commit happens; [Runner.Tx] wakes this one without a notification.
// Errors as of [Runner.Enqueue].
func (r *Runner) EnqueueTx(ctx context.Context, tx pgx.Tx, args job.Args, options ...EnqueueOption) (Submitted, error) {
	w, err := encodeSubmission(args, options)
	if err != nil {
		return Submitted{}, err
	}
	s, err := r.pod.SubmitTx(ctx, tx, w)
	return Submitted(s), err
}

// Tx runs do in a transaction of the host's pool, commits it, and wakes this pod for the jobs that do submitted.
func (r *Runner) Tx(ctx context.Context, do func(tx pgx.Tx) error) error {
	if err := pgx.BeginFunc(ctx, r.pod.Pool, do); err != nil {
		if store.Unknown(err) && ctx.Err() == nil {
			return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
		}
		return err
	}
	r.pod.Wake()
	return nil
}

// manyAtOnce is the number of jobs that one statement of EnqueueMany inserts.
const manyAtOnce = 2000

// EnqueueMany submits jobs with the same options, pending or awaiting approval, and returns their ids in order. Each 2,000 of them are one
// commit: after an error the ids returned are those that are known to be committed. Keys are not among its options.
func (r *Runner) EnqueueMany(ctx context.Context, list []job.Args, options ...EnqueueOption) ([]int64, error) {
	var done []int64
	for part := range slices.Chunk(list, manyAtOnce) {
		encoded := make([]*work.Submission, len(part))
		for i, args := range part {
			var err error
			if encoded[i], err = encodeSubmission(args, options); err != nil {
				return done, err
			}
		}
		ids, err := r.pod.SubmitMany(ctx, encoded)
		if err != nil {
			return done, err
		}
		done = append(done, ids...)
	}
	r.pod.Wake()
	r.pod.WakePeers()
	return done, nil
}
