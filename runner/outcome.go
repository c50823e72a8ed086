package runner

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Outcome is what a handler returns on success. Create one with [Done], [Then], [FanOut], [Deferred] or [Snooze]. A nil Outcome means
// Done(nil).
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
	wrong    error // the first construction error; the job fails with it
}

// complain records the first mistake made in constructing an outcome.
func (o *Outcome) complain(format string, args ...any) *Outcome {
	if o.wrong == nil {
		o.wrong = fmt.Errorf("%w: "+format, append([]any{job.ErrInvalid}, args...)...)
	}
	return o
}

// fan is a fan-out as described by its handler.
type fan struct {
	children []job.Args
	parts    int
	failFast bool
	join     job.Args
}

// Done ends the job with a result that is encoded as JSON, or without one if result is nil. In a declared chain, the next step then runs.
func Done(result any) *Outcome { return &Outcome{result: result, status: job.OK} }

// Then ends the job and submits its pipeline's next step in the same commit. The step starts in this process immediately if its lane has a
// free slot here and no more urgent job is waiting there. The step inherits its parent's subject, key and priority. It uses its kind's lane, or
// its parent's lane if the kind has none. Options override all three. A declared chain continues after the step.
func Then(next job.Args, options ...EnqueueOption) *Outcome {
	if next == nil {
		next = Chain(nil) // rejected when the job ends; nil would be treated as Done
	}
	return &Outcome{status: job.OK, next: next, options: options}
}

// Snooze ends this run without a result: the job waits for d and then runs again. A snooze does not count as an attempt, and the job
// occupies no slot while it waits. If d is 0, the job does not wait. If d is negative, the attempt fails. The text why is recorded in the
// job's history.
func Snooze(d time.Duration, why string) *Outcome {
	return &Outcome{status: job.OK, snooze: &work.Snooze{Wait: d, Why: why}}
}

// WithBackoff doubles the wait with each [Snooze] of the job. The n-th snooze waits for d · 2ⁿ⁻¹, up to ten minutes or d, whichever is
// longer. The count, [Job.Snoozes], is never reset.
func (o *Outcome) WithBackoff() *Outcome {
	if o.snooze == nil {
		return o.complain("WithBackoff on an outcome that is not Snooze")
	}
	o.snooze.Backoff = true
	return o
}

// FanOut ends the run, but not the job. While the job waits for its children, it is in the waiting state, holds no slot, lease or
// goroutine, and its subject is free. The children are inserted in the commit that ends the run. A child can be a [Chain] or can itself fan
// out; it counts as finished once its next steps have finished too. [With] sets options for a child. By default a child has no subject, has
// its parent's key and priority, and uses its kind's lane or else its parent's. If a child's [Unique] key is taken, the child is left out: the job
// that holds the key does its work, and the parent does not wait for it.
//
// When the last child has finished, the job ends too, and the step of [Outcome.Join] is inserted in the same commit. Without a join, a
// declared chain continues. If all children fail, or one fails under [Outcome.FailFast], the job fails with the reason children_failed and
// nothing follows. If only some fail, the job succeeds with a warning and the pipeline ends as partial. The join can find out which ones
// failed with [Job.Branches]. A fan-out has at most Options.MaxFanOut children. If there are more, the job fails with [job.ErrTooLarge] and
// nothing is inserted.
func FanOut(children ...job.Args) *Outcome {
	return &Outcome{status: job.OK, fan: &fan{children: children}}
}

// Deferred ends the run, but not the job. The job waits until the given number of parts have been completed from outside, with
// [Runner.Complete] and the token from [Job.Token]. Otherwise it works like [FanOut]. If parts is less than one, the job fails, because
// nothing could complete it. If no attempt has called Job.Token, the attempt fails for the same reason.
func Deferred(parts int) *Outcome {
	o := &Outcome{status: job.OK, fan: &fan{parts: parts}}
	if parts < 1 {
		o.complain("Deferred(%d), want at least one part", parts)
	}
	return o
}

// Join sets the step that runs once all branches of a [FanOut] or [Deferred] have finished. With [Job.PreviousResult], the step reads the
// result of the job that fanned out, and with [Job.Branches] the branches' results. It takes the same options as a [With]. next can be a
// [Chain].
func (o *Outcome) Join(next job.Args, options ...EnqueueOption) *Outcome {
	if o.fan == nil {
		return o.complain("Join on an outcome that is neither FanOut nor Deferred")
	}
	o.fan.join = With(next, options...)
	return o
}

// FailFast makes a [FanOut] or [Deferred] job fail as soon as one branch fails. Its unfinished branches are cancelled.
func (o *Outcome) FailFast() *Outcome {
	if o.fan == nil {
		return o.complain("FailFast on an outcome that is neither FanOut nor Deferred")
	}
	o.fan.failFast = true
	return o
}

// EndChain ends the job like [Done] and drops its declared chain's remaining steps.
func EndChain(result any) *Outcome { return Done(result).EndChain() }

// EndChain drops a declared chain's remaining steps. Only a step set with [Then] or [Outcome.Join] can then follow. Inside a branch of a
// fan-out, it drops the branch's chain.
func (o *Outcome) EndChain() *Outcome { o.endChain = true; return o }

// OnFailure sets a compensation: a job that undoes this step. Trapeze submits it in the commit in which a later step of the pipeline fails.
// The compensations of several steps form one chain, starting with the latest step. The compensation applies once the handler has returned,
// even if this run fails afterwards, but not if the job is retried and another run fails. For a branch of a fan-out, it applies until the
// branch has finished. See also the function [OnFailure].
func (o *Outcome) OnFailure(args job.Args) *Outcome { return o.undone(OnFailure(args)) }

// OnFailureOrCancel is like [Outcome.OnFailure], but also applies when a later step is cancelled, or when this job is cancelled while it is
// ending.
func (o *Outcome) OnFailureOrCancel(args job.Args) *Outcome {
	return o.undone(OnFailureOrCancel(args))
}

func (o *Outcome) undone(f FailureOption) *Outcome {
	if o.snooze != nil {
		return o.complain("OnFailure on a Snooze outcome: the job has not ended")
	}
	o.undo = append(o.undo, f)
	return o
}

// Result sets the job's result. The next step reads it with [Job.PreviousResult].
func (o *Outcome) Result(result any) *Outcome { o.result = result; return o }

// Warning marks the outcome as a warning: the job succeeded, but a person should check its result.
func (o *Outcome) Warning() *Outcome { o.status = job.Warning; return o }

// InTx adds the handler's writes to the commit that ends the job, so they happen exactly once. write runs after the handler has returned,
// in the transaction that locks the job's lease. If write returns an error or panics, everything is rolled back, and the error is treated
// as if the handler had returned it. The transaction uses the host's pool. If InTx is called twice, both functions run, in the order of the
// calls. For statements whose result is not needed, [Outcome.Write] is faster.
func (o *Outcome) InTx(write func(ctx context.Context, tx pgx.Tx) error) *Outcome {
	if write == nil {
		return o.complain("InTx with a nil function")
	}
	o.writes = append(o.writes, work.Write{Do: write})
	return o
}

// Write adds a statement to the commit that ends the job, like [Outcome.InTx], so the statement takes effect exactly once. Its result is
// not read, so jobs that finish concurrently can share a commit, which is several times faster than InTx. The statement must begin with
// insert, update, delete, merge, select, with or call. The arguments are passed to pgx and must not be modified afterwards. A job can write
// at most 100 statements and 1 MiB.
//
// If the statement fails, only its own job fails, as with InTx. A shared commit waits at most a second for a lock. After a timeout, or any
// other error, its jobs are committed in smaller groups, down to single jobs. A statement that changes a setting, for example with
// set_config, may affect other jobs' statements; use InTx for it.
func (o *Outcome) Write(sql string, args ...any) *Outcome {
	o.writes = append(o.writes, work.Write{SQL: sql, Args: args})
	return o
}

// WriteBatch calls [Outcome.Write] for each statement in a batch. The statements must not have callbacks that read their results.
func (o *Outcome) WriteBatch(b *pgx.Batch) *Outcome {
	if b == nil {
		return o.complain("WriteBatch with a nil batch")
	}
	statements, err := statementsOf(b)
	if err != nil {
		return o.complain("WriteBatch: %w", err)
	}
	o.writes = append(o.writes, statements...)
	return o
}

// statementsOf returns a batch's statements, or none if the batch is nil.
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

// CompleteOption sets an option of [Runner.Complete].
type CompleteOption func(*completion)

type completion struct {
	part    string
	failure string
	by      string
}

// Part names the part to complete, for a job with several parts. Each part counts only once, even if a caller completes it again. A name has at
// most 500 bytes.
func Part(name string) CompleteOption { return func(c *completion) { c.part = name } }

// PartFailed marks the part as failed. A failed part counts as complete; [Deferred] describes how it affects the job.
func PartFailed(err error) CompleteOption {
	return func(c *completion) { c.failure = job.Storable("failed: "+err.Error(), job.MaxErrorBytes) }
}

// CompletedBy records in the audit log which operator completed the part. Without it, no audit entry is written, because the token is
// sufficient authorization.
func CompletedBy(actor string) CompleteOption {
	return func(c *completion) { c.by = admin.Actor(actor) }
}

// Complete completes one part of a [Deferred] job, from any process. It requires the token that the job's handler got from [Job.Token]. The
// result is encoded as JSON; pass nil for none. Complete can be called before the handler has returned. After the last part, the job ends
// and its next step is inserted. Completing the same part again has no effect.
//
// It returns [job.ErrNotFound] if no job with this id has issued a token, [job.ErrWrongToken] if the token does not belong to the job,
// [job.ErrInvalid] if the part name is invalid, [job.ErrTooLarge] if the result is too large, and [job.ErrAlreadyTerminal] if all parts are
// complete or the job was cancelled. After [job.ErrOutcomeUnknown], the call can be repeated.
func (r *Runner) Complete(ctx context.Context, id int64, token string, result any, options ...CompleteOption) error {
	var c completion
	for _, o := range options {
		o(&c)
	}
	if len(c.part) > 500 || job.Storable(c.part, 500) != c.part {
		return fmt.Errorf("%w: complete job %d: part name of %d bytes: want at most 500 bytes of valid text", job.ErrInvalid, id, len(c.part))
	}
	encoded, err := work.EncodeResult(result)
	if err != nil {
		return fmt.Errorf("complete job %d: %w", id, err)
	}
	due, err := admin.Complete(ctx, r.pod.Commands, id, token, c.part, encoded, c.failure, c.by)
	if store.Unknown(err) {
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, r.pod.DBError(err))
	}
	if errors.Is(err, job.ErrAlreadyTerminal) || err == nil && !due {
		return err
	}
	if err != nil {
		return r.pod.DBError(err)
	}
	if err := r.pod.SettleFanOut(ctx, id); err != nil {
		r.pod.Log.WarnContext(ctx, "last part completed: the next heartbeat ends its job", telemetry.JobID, id, telemetry.Err, r.pod.DBError(err))
	}
	return nil
}

// Branches returns the outcomes of a job's fan-out branches, in fan-out order. It reads them in pages, so 10,000 results need not fit in
// memory at once. Iteration stops at the first error, which is [job.ErrNotFound] if the job never fanned out.
func (r *Runner) Branches(ctx context.Context, id int64) iter.Seq2[Branch, error] {
	return r.pod.Branches(ctx, id)
}
