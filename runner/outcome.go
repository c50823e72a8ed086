package runner

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Outcome is what follows a handler that succeeded: made by [Done], [Then] or [RetryLater]. nil is Done(nil).
type Outcome struct {
	result  any
	quality job.Quality
	next    job.Args
	options []EnqueueOption
	inTx    func(ctx context.Context, tx pgx.Tx) error
	later   *time.Duration
	why     string
}

// Done ends the job with a result that encodes to JSON; nil is none. A job of a declared chain goes on to its next step.
func Done(result any) *Outcome { return &Outcome{result: result, quality: job.OK} }

// Then ends the job and hands its pipeline to the next step: in the same commit, and in this process at once when a slot
// of its lane is free here and nothing more urgent waits there. The step keeps its parent's subject and priority, and its
// kind's lane or else its parent's, unless an option says otherwise. A declared chain goes on after it.
func Then(next job.Args, options ...EnqueueOption) *Outcome {
	if next == nil {
		next = Chain(nil) // refused when the job ends, rather than taken for Done
	}
	return &Outcome{quality: job.OK, next: next, options: options}
}

// RetryLater ends this run without a verdict: the job waits and runs again. No attempt is spent and no slot is held. The n-th
// time that a job is put off it waits for d · 2ⁿ⁻¹, at most ten minutes, or d if that is longer; the count is never reset. A
// d of 0 or less is no wait at all. why goes into the history.
func RetryLater(d time.Duration, why string) *Outcome {
	return &Outcome{quality: job.OK, later: &d, why: why}
}

// Result sets the result of the job, read by the next step with [Job.Parent].
func (o *Outcome) Result(result any) *Outcome { o.result = result; return o }

// Warning marks the outcome: the job succeeded, and someone should look at its result.
func (o *Outcome) Warning() *Outcome { o.quality = job.Warning; return o }

// InTx adds the handler's own writes to the commit that ends the job: they happen exactly once. write runs after the
// handler has returned, with the job's lease held; an error of it, or a panic, rolls everything back and counts as the
// handler's error. The transaction is one of the host's pool.
func (o *Outcome) InTx(write func(ctx context.Context, tx pgx.Tx) error) *Outcome {
	o.inTx = write
	return o
}
