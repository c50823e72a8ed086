package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Job is a claimed job as its handler sees it. Its methods are safe for concurrent use. To call a handler in a test, use runnertest.Call: a
// Job that a program creates itself has no claim, so methods that need one return an error.
type Job[A job.Args] struct {
	core
	Args A
}

// core holds the part of a Job that does not depend on its arguments' type.
type core struct {
	job *work.Job
	ctx context.Context
}

// claim returns the job's claim. For a Job that the program created itself, it returns an empty claim whose reads and writes fail.
func (c core) claim() *work.Job {
	if c.job == nil {
		return &work.Unclaimed
	}
	return c.job
}

// Context returns the context that the job's handler received, with the values that middleware added. In a batch ([HandleBatch]), it ends
// when this job is cancelled or times out, while the context of the call continues. A Job that the program created itself has the background context.
func (c core) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// ID returns the job's id.
func (c core) ID() int64 { return c.claim().Claimed.ID }

// Kind returns the job's kind.
func (c core) Kind() string { return c.claim().Claimed.Kind }

// Lane returns the lane whose slot the job occupies.
func (c core) Lane() string { return c.claim().Claimed.Lane }

// Subject returns the job's subject, or "" if it has none.
func (c core) Subject() string { return c.claim().Claimed.Subject }

// Key returns the job's [Key], or "" if it has none.
func (c core) Key() string { return c.claim().Claimed.Key }

// Priority returns the job's priority, from −100 to 100.
func (c core) Priority() int { return c.claim().Claimed.Priority }

// Attempt returns the number of this attempt, starting with 1. Attempts that ended in a crash, a shutdown or a [Snooze] are not counted.
func (c core) Attempt() int { return c.claim().Claimed.Attempt }

// MaxAttempts returns the number of attempts after which a handler error fails the job, as set by the job, its kind or Options.MaxAttempts.
// It returns 0 on a remote worker if the pod runs a version that does not send the number.
func (c core) MaxAttempts() int { return c.claim().MaxAttempts }

// Crashes returns how many times the job's pod has died or lost its lease since the job last made progress.
func (c core) Crashes() int { return c.claim().Claimed.Crashes }

// Fence returns this claim's fencing token, which increases with every claim of the job. An external system that remembers the highest
// fence can reject writes from a former claim.
func (c core) Fence() int64 { return c.claim().Claimed.Fence }

// PodID returns the id of the pod that claimed the job.
func (c core) PodID() string { return c.claim().Lease.Pod }

// PodName returns the display name of this pod.
func (c core) PodName() string { return c.claim().Pod }

// Snoozes returns how many times the job's handler has returned [Snooze].
func (c core) Snoozes() int { return c.claim().Claimed.Snoozes }

// PipelineID returns the id of the pipeline's first job. For a single job, that is the job's own id.
func (c core) PipelineID() int64 { return c.claim().Claimed.PipelineID }

// Step returns the number of pipeline steps before this one.
func (c core) Step() int { return c.claim().Claimed.Step }

// CreatedAt returns the submission time by the database's clock. It returns the zero time on a remote worker if the pod runs a version that
// does not send it.
func (c core) CreatedAt() time.Time { return c.claim().Claimed.CreatedAt }

// SubmittedBy returns the submitter of the job, or of the first job of its pipeline; see [Submitter]. It returns "" if none was set.
func (c core) SubmittedBy() string { return c.claim().Claimed.Submitter }

// ClaimedAt returns the time at which the job was claimed, by the database's clock.
func (c core) ClaimedAt() time.Time { return c.claim().Claimed.ClaimedAt }

// Path returns how the job was claimed: "fast" (started on insert) or "poll".
func (c core) Path() string { return c.claim().Claimed.Path }

// PreviousResult decodes the previous step's result into v. It returns [job.ErrNotFound] if there is none.
func (c core) PreviousResult(ctx context.Context, v any) error {
	result, err := c.claim().PreviousResult(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(result, v)
}

// Branches returns the branch outcomes of the fan-out that this job joins, as [Runner.Branches] does. In a child, it returns
// [job.ErrNotFound], because the siblings may not have finished.
func (c core) Branches(ctx context.Context) iter.Seq2[Branch, error] {
	return c.claim().Writer.Branches(ctx)
}

// Tx runs write in a transaction, on the host's pool, that locks this claim's lease. It commits the writes together with the checkpoint, or
// without one if checkpoint is nil, so a former claim cannot write a batch again. The checkpoint is encoded after write has returned, so it
// can be a pointer to values that write sets.
//
// If the connection breaks, write runs again in a new transaction. Only one commit counts: if its reply is lost, the outcome is read back.
// Tx returns write's error, [job.ErrLeaseLost], [job.ErrGone] or [job.ErrCancelled], with nothing written. A job's transactions run one at
// a time. Calling Tx or Checkpoint inside write returns an error immediately.
func (c core) Tx(ctx context.Context, write func(tx pgx.Tx) error, checkpoint any) error {
	if checkpoint == nil {
		return c.claim().Tx(ctx, write, nil)
	}
	return c.claim().Tx(ctx, write, func() (json.RawMessage, error) { return c.encode(checkpoint) })
}

// Write runs a batch's statements in a transaction, on the host's pool, that locks this claim's lease. It commits them atomically with the
// checkpoint, or without one if checkpoint is nil. It takes three round trips, regardless of the number of statements. Use [Job.Tx] to read
// between writes. The checkpoint is encoded as in [Job.Checkpoint]. As with [Outcome.Write], the limits are 100 statements and 1 MiB.
// Statements must not have callbacks that read their results.
//
// The statements run again in a new transaction if the connection breaks, or if PostgreSQL reports a deadlock (40P01) or a serialization
// failure (40001). Only one commit counts: if the reply to a commit is lost, the outcome is read back.
//
// Write returns [job.ErrInvalid] or [job.ErrTooLarge] if it rejects the statements. If a statement fails, the error names the job, the
// statement's number and PostgreSQL's code. After any of these errors, or after [job.ErrLeaseLost], [job.ErrGone] or [job.ErrCancelled],
// nothing has been written. A job's transactions run one at a time. On a remote worker, Write returns [ErrNoDatabase].
func (c core) Write(ctx context.Context, checkpoint any, batch *pgx.Batch) error {
	statements, err := statementsOf(batch)
	if err != nil {
		return fmt.Errorf("%w: write of job %d: %w", job.ErrInvalid, c.ID(), err)
	}
	var kept json.RawMessage
	if checkpoint != nil {
		if kept, err = c.encode(checkpoint); err != nil {
			return err
		}
	}
	return c.claim().Write(ctx, statements, kept)
}

// Checkpoint stores v as the job's checkpoint: the progress from which the next run continues after a crash, an error or a shutdown. It
// takes one round trip. A handler that also writes data should use [Job.Write] or [Job.Tx], which store the data and the checkpoint in one
// commit. v's JSON encoding must not exceed 1 MiB. A checkpoint resets the job's crash count.
//
// When Checkpoint returns nil, the checkpoint is stored. While the connection is broken, Checkpoint retries until ctx is done. If it
// returns [job.ErrLeaseLost], [job.ErrGone] or [job.ErrCancelled], nothing was stored. A handler whose context ended with [job.ErrShutdown]
// can still store a checkpoint by passing [context.WithoutCancel](ctx). If one of the job's transactions is open, Checkpoint waits up to
// ten seconds for it to end.
func (c core) Checkpoint(ctx context.Context, v any) error {
	kept, err := c.encode(v)
	if err != nil {
		return err
	}
	return c.claim().Checkpoint(ctx, kept)
}

func (c core) encode(v any) (json.RawMessage, error) {
	kept, err := work.Encode(v, job.MaxArgsBytes)
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint of job %d: %w", c.ID(), err)
	}
	return kept, nil
}

// LastCheckpoint decodes the job's latest checkpoint into v and reports whether there is one. If this run has not stored a checkpoint,
// LastCheckpoint uses the latest one from earlier runs. Checkpoints survive errors, crashes and takeovers.
func (c core) LastCheckpoint(v any) (bool, error) {
	last := c.claim().LastCheckpoint()
	if last == nil {
		return false, nil
	}
	return true, json.Unmarshal(last, v)
}

// Progress records the job's progress: done of total units. It never waits for the database. Updates are written at most a few times per
// second; the latest one is always written.
func (c core) Progress(done, total int64) {
	c.claim().Writer.Progress(job.Progress{Done: &done, Total: &total})
}

// Message records a short description of the job's current work. It is written in the same way as [Job.Progress].
func (c core) Message(text string) {
	text = job.Storable(text, 500)
	c.claim().Writer.Progress(job.Progress{Message: &text})
}

// Emit appends an event to the job's history. fields is encoded as JSON of at most 1 MiB, and may be nil. level is debug, info, warn or
// error; empty means info.
//
// The first event is visible when Emit returns. A job writes events at most four times a second. Other events are buffered and written
// together, in order, within a quarter of a second, and always before the job ends. When 4,096 events or 1 MiB are buffered, Emit blocks.
// An event that is emitted while a [Job.Tx] or InTx of this job is open becomes visible when that transaction commits. If the process
// crashes, only the events buffered in the last quarter of a second are lost.
//
// If buffered events could not be written, the error is logged and the next Emit returns it. If Emit returns an error, its event is not in
// the history, unless the database's reply was lost. Emit returns [job.ErrLeaseLost] if another claim holds the job or its handler has
// returned, and [job.ErrGone] if the job was deleted.
func (c core) Emit(ctx context.Context, event, level, message string, fields any) error {
	var encoded json.RawMessage
	if fields != nil {
		var err error
		if encoded, err = work.Encode(fields, job.MaxArgsBytes); err != nil {
			return fmt.Errorf("encode fields of event %s: %w", event, err)
		}
	}
	return c.claim().Emit(ctx, event, level, message, encoded)
}

// Token returns the secret token for completing this job's parts after its handler has returned [Deferred]. Pass it, with the job's id, to
// the system that does the work. The token is the same in every attempt. Token returns [job.ErrLeaseLost] if another claim holds the job.
func (c core) Token(ctx context.Context) (string, error) {
	return c.claim().Writer.CompletionToken(ctx)
}
