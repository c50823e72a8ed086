package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Outcome is what follows a handler that succeeded: made by [Done], [Then], [FanOut], [Deferred] or [Snooze]. nil is Done(nil).
type Outcome struct {
	result   any
	status   job.OutcomeStatus
	next     job.Args
	options  []EnqueueOption
	writes   work.Writes
	snooze   *work.Snooze
	fan      *fan
	undo     []FailureOption
	endChain bool
	wrong    error // the first mistake in how it was made: the job fails with it
}

// complain keeps the first mistake in how an outcome was made.
func (o *Outcome) complain(format string, args ...any) *Outcome {
	if o.wrong == nil {
		o.wrong = fmt.Errorf("%w: "+format, append([]any{job.ErrInvalid}, args...)...)
	}
	return o
}

// fan is a fan-out as its handler describes it.
type fan struct {
	children []job.Args
	parts    int
	failFast bool
	join     job.Args
}

// Done ends the job with a result that encodes to JSON; nil is none. A job of a declared chain goes on to its next step.
func Done(result any) *Outcome { return &Outcome{result: result, status: job.OK} }

// Then ends the job and hands its pipeline to the next step: in the same commit, and in this process at once when a slot
// of its lane is free here and nothing more urgent waits there. The step keeps its parent's subject and priority, and its
// kind's lane or else its parent's, unless an option says otherwise. A declared chain goes on after it.
func Then(next job.Args, options ...EnqueueOption) *Outcome {
	if next == nil {
		next = Chain(nil) // refused when the job ends, rather than taken for Done
	}
	return &Outcome{status: job.OK, next: next, options: options}
}

// Snooze ends this run without a verdict: the job waits for d and runs again. No attempt is spent and no slot is held. A d of 0 or less is
// no wait at all. why goes into the history.
func Snooze(d time.Duration, why string) *Outcome {
	return &Outcome{status: job.OK, snooze: &work.Snooze{Wait: d, Why: why}}
}

// WithBackoff makes the wait of a [Snooze] grow: the n-th time that a job snoozes it waits for d · 2ⁿ⁻¹, at most ten minutes, or d if that
// is longer. The count is [Job.Snoozes] and is never reset.
func (o *Outcome) WithBackoff() *Outcome {
	if o.snooze == nil {
		return o.complain("WithBackoff of an outcome that is not Snooze")
	}
	o.snooze.Backoff = true
	return o
}

// FanOut ends the run, not the job: it waits for the children, in the state waiting, without a slot, a lease or a goroutine, and
// its subject is free. They are inserted in the commit that ends the run; each may be a [Chain] or fan out itself, and counts until
// what follows it has ended too. Give a child options with [Step]: a child has no subject unless it is given one, its parent's
// priority, and its kind's lane or else its parent's. A child whose [Unique] key is taken is left out: whoever holds the key does
// its work, and nobody waits for it.
//
// When the last child has ended, so does the job, and the step of [Outcome.Join] is inserted in that commit; without a join a
// declared chain goes on. When all children failed, or one with [Outcome.FailFast], the job fails with the reason children_failed and
// nothing follows; when some did, it succeeds with a warning, the join sees which ([Job.Branches]), and the pipeline ends partial.
// At most Options.MaxFanOut children: more is [job.ErrTooLarge], and the job fails with nothing inserted.
func FanOut(children ...job.Args) *Outcome {
	return &Outcome{status: job.OK, fan: &fan{children: children}}
}

// Deferred ends the run, not the job: it waits until parts of it, so many in all, have been completed from outside with
// [Runner.Complete] and the token of [Job.Token]. Otherwise as [FanOut]. With no part at all the job fails: nobody could complete it.
func Deferred(parts int) *Outcome {
	o := &Outcome{status: job.OK, fan: &fan{parts: parts}}
	if parts < 1 {
		o.complain("Deferred(%d), want at least one part", parts)
	}
	return o
}

// Join sets the step that follows when all branches of a [FanOut] or [Deferred] have ended. It reads the result of the job that
// fanned out with [Job.PreviousResult] and those of the branches with [Job.Branches]. Its options are those of a [Step]. The join may be
// a [Chain].
func (o *Outcome) Join(next job.Args, options ...EnqueueOption) *Outcome {
	if o.fan == nil {
		return o.complain("Join of an outcome that is neither FanOut nor Deferred")
	}
	o.fan.join = Step(next, options...)
	return o
}

// FailFast makes the first branch of a [FanOut] or [Deferred] that fails end the job as failed; the branches that are open are cancelled.
func (o *Outcome) FailFast() *Outcome {
	if o.fan == nil {
		return o.complain("FailFast of an outcome that is neither FanOut nor Deferred")
	}
	o.fan.failFast = true
	return o
}

// EndChain ends the job as [Done] does, and the chain that was declared with it: the steps after this one do not follow.
func EndChain(result any) *Outcome { return Done(result).EndChain() }

// EndChain drops the remaining steps of a declared chain: the next step is that of [Then], the [Outcome.Join], or none. Inside a
// branch of a fan-out it is the chain of that branch.
func (o *Outcome) EndChain() *Outcome { o.endChain = true; return o }

// OnFailure names a compensation, a job that undoes this step. Trapeze submits it when a later step of the pipeline fails, in the commit of
// that failure. Those of several steps are one chain, the latest first. It counts from the return of the handler on, also when this run
// fails after that, but not when the job is tried again and another run fails. A compensation of a branch of a fan-out counts until the
// branch has ended. See the function [OnFailure].
func (o *Outcome) OnFailure(args job.Args) *Outcome { return o.undone(OnFailure(args)) }

// OnFailureOrCancel is [Outcome.OnFailure], and also when a later step is cancelled, or this job while it ends.
func (o *Outcome) OnFailureOrCancel(args job.Args) *Outcome {
	return o.undone(OnFailureOrCancel(args))
}

func (o *Outcome) undone(f FailureOption) *Outcome {
	if o.snooze != nil {
		return o.complain("OnFailure of an outcome that is Snooze: the job has not ended")
	}
	o.undo = append(o.undo, f)
	return o
}

// Result sets the result of the job, read by the next step with [Job.PreviousResult].
func (o *Outcome) Result(result any) *Outcome { o.result = result; return o }

// Warning marks the outcome: the job succeeded, and someone should look at its result.
func (o *Outcome) Warning() *Outcome { o.status = job.Warning; return o }

// InTx adds the handler's own writes to the commit that ends the job: they happen exactly once. write runs after the
// handler has returned, with the job's lease held; an error of it, or a panic, rolls everything back and counts as the
// handler's error. The transaction is one of the host's pool. Given twice, both write, in this order. [Outcome.Write] is faster for statements
// whose result is not read.
func (o *Outcome) InTx(write func(ctx context.Context, tx pgx.Tx) error) *Outcome {
	if write == nil {
		return o.complain("InTx of a nil function")
	}
	o.writes = append(o.writes, work.Write{Do: write})
	return o
}

// Write adds a statement to the commit that ends the job, as [Outcome.InTx] does: it happens exactly once. Its result is not read, so
// jobs that end at the same time share a commit, which is several times faster than InTx. It begins with insert, update, delete, merge,
// select, with or call; the arguments are those of pgx, and must not change any more. At most 100 statements and 1 MiB for one job.
//
// An error of the statement fails its job alone, as an error of InTx does. A shared commit waits for a lock for at most a second; then,
// and after any other error, its jobs are committed in smaller groups, at last one by one. A setting that a statement makes, such as with
// set_config, may hold for statements of other jobs: use InTx for those.
func (o *Outcome) Write(sql string, args ...any) *Outcome {
	o.writes = append(o.writes, work.Write{SQL: sql, Args: args})
	return o
}

// WriteBatch is [Outcome.Write] of each statement of a batch. None may have a function that reads its result.
func (o *Outcome) WriteBatch(b *pgx.Batch) *Outcome {
	if b == nil {
		return o.complain("WriteBatch of a nil batch")
	}
	statements, err := statementsOf(b)
	if err != nil {
		return o.complain("WriteBatch: %w", err)
	}
	o.writes = append(o.writes, statements...)
	return o
}

// statementsOf returns the statements of a batch; nil is none.
func statementsOf(b *pgx.Batch) (list work.Writes, err error) {
	if b == nil {
		return nil, nil
	}
	for i, q := range b.QueuedQueries {
		if q.Fn != nil {
			return nil, fmt.Errorf("statement %d has a function that reads its result", i+1)
		}
		list = append(list, work.Write{SQL: q.SQL, Args: q.Arguments})
	}
	return list, nil
}
