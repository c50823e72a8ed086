package runner

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Enqueue submits a job. The job starts on this pod immediately if its lane has a free slot here, its subject is free, and no job ahead of
// it is waiting in the lane. Otherwise, it stays pending until a pod with a free slot claims it.
//
// It returns [job.ErrUnknownKind], [job.ErrUnknownLane], [job.ErrInvalidArgs], [job.ErrTooLarge], [job.ErrInvalid] or [job.ErrKeyReused].
// It returns [job.ErrOutcomeUnknown] if the connection was lost and the outcome could not be read back. With an [IdempotencyKey], repeating
// the call is safe. Enqueue is safe for concurrent use and can be called before [Runner.Run].
func (r *Runner) Enqueue(ctx context.Context, args job.Args, options ...EnqueueOption) (Submitted, error) {
	w, err := encodeSubmission(args, options)
	if err != nil {
		return Submitted{}, err
	}
	return r.submitOne(ctx, w, func(ctx context.Context) (work.Submitted, error) { return r.pod.Submit(ctx, w) })
}

// EnqueueTx submits a job in the caller's transaction: the job exists if and only if the transaction commits. The job starts as pending or
// awaiting approval. The commit notifies the listening pods; [Runner.Tx] wakes this pod without a notification. EnqueueTx returns the same
// errors as [Runner.Enqueue].
func (r *Runner) EnqueueTx(ctx context.Context, tx pgx.Tx, args job.Args, options ...EnqueueOption) (Submitted, error) {
	w, err := encodeSubmission(args, options)
	if err != nil {
		return Submitted{}, err
	}
	return r.submitOne(ctx, w, func(ctx context.Context) (work.Submitted, error) { return r.pod.SubmitTx(ctx, tx, w) })
}

// submitOne submits one job through the middleware.
func (r *Runner) submitOne(ctx context.Context, w *work.Submission, do func(context.Context) (work.Submitted, error)) (Submitted, error) {
	if len(r.opts.EnqueueMiddleware) == 0 {
		s, err := do(ctx)
		return Submitted(s), err
	}
	made, err := r.submitAll(ctx, []*work.Submission{w}, func(ctx context.Context) ([]Submitted, error) {
		s, err := do(ctx)
		return []Submitted{Submitted(s)}, err
	})
	if err != nil {
		return Submitted{}, err
	}
	return made[0], nil
}

// submitAll submits jobs through the middleware.
func (r *Runner) submitAll(ctx context.Context, jobs []*work.Submission, do func(context.Context) ([]Submitted, error)) ([]Submitted, error) {
	if len(r.opts.EnqueueMiddleware) == 0 {
		return do(ctx)
	}
	list := make([]Submission, len(jobs))
	for i, w := range jobs {
		list[i] = w.Describe()
	}
	for i := len(r.opts.EnqueueMiddleware) - 1; i >= 0; i-- {
		enqueueMiddleware, next := r.opts.EnqueueMiddleware[i], do
		do = func(ctx context.Context) ([]Submitted, error) { return enqueueMiddleware(ctx, list, next) }
	}
	made, err := do(ctx)
	if err == nil && len(made) != len(jobs) {
		err = fmt.Errorf("enqueue middleware returned %d results for %d jobs: return those of next", len(made), len(jobs))
	}
	return made, err
}

// Describe returns the submission for the given args and options without using a database. In a test, a fake for your own interface can
// call Describe to inspect the submissions made by the code under test. It returns the same errors as [Runner.Enqueue], but does not check
// kinds, lanes or keys.
func Describe(args job.Args, options ...EnqueueOption) (Submission, error) {
	w, err := encodeSubmission(args, options)
	if err != nil {
		return Submission{}, err
	}
	if err := w.Validate(); err != nil {
		return Submission{}, fmt.Errorf("%w (kind %s)", err, w.Kind)
	}
	return w.Describe(), nil
}

// Tx runs do in a transaction on the host's pool and commits it. It then wakes this pod to run the jobs that do has submitted. Inside do, or
// inside the function of [Job.Tx] or [Outcome.InTx], calling Tx, [Job.Tx] or [Job.Write] returns an error immediately, because a second
// transaction would wait for the connection of the first once the pool has no other.
func (r *Runner) Tx(ctx context.Context, do func(tx pgx.Tx) error) error {
	committing := false
	err := r.pod.HostTx(ctx, func(tx pgx.Tx) error {
		err := do(tx)
		committing = err == nil
		return err
	})
	if err != nil {
		if committing && store.Unknown(err) {
			return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
		}
		return err
	}
	r.pod.WakeDue()
	return nil
}

// enqueueBatch is the number of jobs that one statement of EnqueueMany inserts.
const enqueueBatch = 2000

// EnqueueMany submits jobs as pending or awaiting approval, and returns their ids in order. The options apply to all jobs; those of a job in
// [With] take precedence. EnqueueMany commits after every 2,000 jobs. If it fails, it returns the ids known to be committed. Unique and
// idempotency keys are not allowed as options.
func (r *Runner) EnqueueMany(ctx context.Context, list []job.Args, options ...EnqueueOption) ([]int64, error) {
	done, err := r.enqueueMany(ctx, list, options, r.pod.SubmitMany)
	if len(done) > 0 {
		r.pod.WakeAll()
	}
	return done, err
}

// EnqueueManyTx is [Runner.EnqueueMany] in the caller's transaction: all jobs exist if and only if the transaction commits. It sets a
// savepoint for every 2,000 jobs. If it fails, it returns no ids, and the caller must roll back. [Runner.Tx] wakes this pod without a
// notification.
func (r *Runner) EnqueueManyTx(ctx context.Context, tx pgx.Tx, list []job.Args, options ...EnqueueOption) ([]int64, error) {
	done, err := r.enqueueMany(ctx, list, options, func(ctx context.Context, part []*work.Submission) ([]int64, error) {
		return r.pod.SubmitManyTx(ctx, tx, part)
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

// enqueueMany submits jobs in batches. If it fails, it returns the job ids from the earlier batches.
func (r *Runner) enqueueMany(ctx context.Context, list []job.Args, options []EnqueueOption,
	submit func(context.Context, []*work.Submission) ([]int64, error)) (done []int64, err error) {
	for part := range slices.Chunk(list, enqueueBatch) {
		encoded := make([]*work.Submission, len(part))
		for i, args := range part {
			own, _ := args.(withOptions)
			if encoded[i], err = encodeSubmission(cmp.Or(own.args, args), slices.Concat(options, own.options)); err != nil {
				return done, err
			}
		}
		made, err := r.submitAll(ctx, encoded, func(ctx context.Context) ([]Submitted, error) {
			ids, err := submit(ctx, encoded)
			made := make([]Submitted, len(ids))
			for i, id := range ids {
				made[i] = Submitted{ID: id, PipelineID: id}
			}
			return made, err
		})
		if err != nil {
			return done, err
		}
		for _, s := range made {
			done = append(done, s.ID)
		}
	}
	return done, nil
}
