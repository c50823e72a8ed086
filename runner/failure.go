package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// FailureOption sets the job that is submitted when another one fails. It is an option of a submission, of a [Step], and of a kind, but not
// of a schedule.
type FailureOption struct {
	args job.Args
	when job.When
}

// OnFailure submits a job when the job with this option fails for good: it has no tries left, its error is permanent, its pod died too
// often, it is too old, its branches failed, or its result could not be stored. The failure and the submission are one commit, on every
// path that ends a job, even in a pod that knows neither kind. A job that succeeds on a later try has not failed.
//
// args may be a [Chain], and each of its steps a [Step] with a subject, a lane and a priority. Without them the job has the subject and the
// priority of the failed job, and its kind's lane. It begins a separate pipeline, so that a cancel or retry of the failed one does not
// touch it; [Job.Failure] returns the failed job. When the new job fails, nothing follows, unless its kind has an on-failure job.
//
// A job's option overrides its kind's. For compensations of the steps of a pipeline see [Outcome.OnFailure].
func OnFailure(args job.Args) FailureOption { return FailureOption{args, job.OnFailure} }

// OnFailureOrCancel is [OnFailure], but also applies when the job is cancelled or stopped, or its approval expires.
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

// orMissing turns a missing job into an error instead of treating it as no option.
func (o FailureOption) orMissing() FailureOption {
	if o.args == nil {
		o.args = Chain(nil)
	}
	return o
}

// steps encodes the steps that follow a failure.
func (o FailureOption) steps() ([]work.Step, error) {
	next, err := encodeSubmission(o.orMissing().args, nil)
	if err != nil {
		return nil, fmt.Errorf("%w (on failure)", err)
	}
	return work.ForFailure(next, o.when)
}

// plan adds the steps that follow a failure of the job to its plan.
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

// Always makes an [Outcome.Join] follow even when all branches have failed, or when one has failed under [Outcome.FailFast], which cancels
// the others first. The job then ends with a warning instead of failing, and its pipeline ends as partial. It is an option of a join only.
const Always = joinOption(job.Always)

type joinOption job.When

func (o joinOption) enqueue(w *submission) { w.When = job.When(o) }

func (o joinOption) schedule(d *declaration) { o.enqueue(&d.job) }

// Failure returns the failed job, in a job that [OnFailure] submitted and in the steps after it. It returns [job.ErrNotFound] in any other
// job, and when the failed job has been pruned.
func (c core) Failure(ctx context.Context) (job.Failure, error) { return c.claim().Writer.Failure(ctx) }
