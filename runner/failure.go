package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// FailureOption sets the job to submit when another job fails. It is an option for submissions, for a [With] and for kinds, but not for
// schedules.
type FailureOption struct {
	args job.Args
	when job.When
}

// OnFailure submits the given job if the job that has this option fails for good. A job fails for good when it has no attempts left, its
// error is permanent, its pod died too often, it is too old, its branches failed, or its result could not be stored. The failure and the
// submission always share one commit, even on a pod that has a handler for neither kind. A job that succeeds on a later attempt has not
// failed.
//
// args can be a [Chain], and each of its steps can have a subject, a key, a lane and a priority. Without these options, the new job
// has the failed job's subject, key and priority, and its own kind's lane. It begins a separate pipeline, so cancelling or retrying the failed
// job does not affect it. [Job.Failure] returns the failed job. If the new job fails, nothing is submitted, unless its kind has an
// on-failure job.
//
// A job's option overrides its kind's option. To compensate for earlier steps of a pipeline, see [Outcome.OnFailure].
func OnFailure(args job.Args) FailureOption { return FailureOption{args, job.OnFailure} }

// OnFailureOrCancel is like [OnFailure], but also applies when the job is cancelled, also by force, or when its approval expires.
func OnFailureOrCancel(args job.Args) FailureOption {
	return FailureOption{args, job.OnFailureOrCancel}
}

func (o FailureOption) enqueue(w *submission) { w.failure = o.orMissing() }

func (o FailureOption) schedule(d *declaration) { o.enqueue(&d.job) }

func (o FailureOption) handle(k *registered) {
	steps, err := o.steps()
	if err != nil {
		k.wrong = append(k.wrong, err.Error())
	}
	k.OnFailure = steps
}

// orMissing turns nil args into an error, so that they are not mistaken for a missing option.
func (o FailureOption) orMissing() FailureOption {
	if o.args == nil {
		o.args = Chain(nil)
	}
	return o
}

// steps encodes the steps to run after a failure.
func (o FailureOption) steps() ([]work.Step, error) {
	next, err := encodeSubmission(o.orMissing().args, nil)
	if err != nil {
		return nil, fmt.Errorf("%w (on failure)", err)
	}
	return work.ForFailure(next, o.when)
}

// plan adds to the submission the steps to run after a failure.
func (o FailureOption) plan(w *work.Submission) error {
	if o.args == nil {
		return nil
	}
	steps, err := o.steps()
	if err == nil {
		w.OnFailure(steps)
	}
	return err
}

// Always makes an [Outcome.Join] run even if all branches failed, or if [Outcome.FailFast] cancelled the remaining branches after one
// failed. The job then ends with a warning instead of failing, and its pipeline ends as partial. Only a join accepts this option.
const Always = joinOption(job.Always)

type joinOption job.When

func (o joinOption) enqueue(w *submission) { w.When = job.When(o) }

func (o joinOption) schedule(d *declaration) { o.enqueue(&d.job) }

// Failure returns the failed job. It works in a job that [OnFailure] submitted and in the steps after it. In any other job, or if the
// failed job has been pruned, it returns [job.ErrNotFound].
func (c core) Failure(ctx context.Context) (job.Failure, error) { return c.claim().Writer.Failure(ctx) }
