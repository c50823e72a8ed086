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

// Job is one claim of a job, as its handler sees it. Its methods are safe for concurrent use. To call a handler in a test, use
// runnertest.Call: a Job that a program makes itself has no claim, and what needs one fails with an error.
type Job[A job.Args] struct {
	core
	Args A
}

// core is the part of a Job that does not depend on the type of its arguments.
type core struct{ job *work.Job }

// claim returns that of the job: an empty one, whose reads and writes fail, for a Job that a program has made itself.
func (c core) claim() *work.Job {
	if c.job == nil {
		return &work.Unclaimed
	}
	return c.job
}

// ID is the job's id.
func (c core) ID() int64 { return c.claim().Claimed.ID }

// Kind is the job's kind.
func (c core) Kind() string { return c.claim().Claimed.Kind }

// Lane is the lane in whose slot the job runs.
func (c core) Lane() string { return c.claim().Claimed.Lane }

// Subject is what the job is about; empty: nothing in particular.
func (c core) Subject() string { return c.claim().Claimed.Subject }

// Priority is the job's priority, −100 to 100.
func (c core) Priority() int { return c.claim().Claimed.Priority }

// Attempt is this try, counted from 1; tries that a crash, a shutdown or [Snooze] ended are not counted.
func (c core) Attempt() int { return c.claim().Claimed.Attempt }

// MaxAttempts is how many tries may end in the handler's error: what the job was submitted with, or what its kind says, or
// Options.MaxAttempts. 0 on a remote worker whose pod is of a version that does not say.
func (c core) MaxAttempts() int { return c.claim().MaxAttempts }

// Crashes is how often the job's pod has died or lapsed since it last advanced.
func (c core) Crashes() int { return c.claim().Claimed.Crashes }

// Fence is the fencing token of this claim: it rises with every claim of the job. A system outside that keeps the highest
// fence it saw can refuse a former owner.
func (c core) Fence() int64 { return c.claim().Claimed.Fence }

// Boot is the boot id of the pod that claimed the job.
func (c core) Boot() string { return c.claim().Lease.Pod }

// PodName is the display name of this pod.
func (c core) PodName() string { return c.claim().Pod }

// Snoozes is how often the job's handler has put it off with [Snooze].
func (c core) Snoozes() int { return c.claim().Claimed.Snoozes }

// PipelineID is the id of the first job of the pipeline; a lone job's own id.
func (c core) PipelineID() int64 { return c.claim().Claimed.PipelineID }

// Step counts the steps of the pipeline before this one.
func (c core) Step() int { return c.claim().Claimed.Step }

// CreatedAt is when the job was submitted, by the database's clock, or by this pod's where the job was started as it was submitted. Zero on a remote worker
// whose pod is of a version that does not say.
func (c core) CreatedAt() time.Time { return c.claim().Claimed.CreatedAt }

// SubmittedBy is who submitted the job, or the first job of its pipeline: see [Submitter]. Empty: nobody said so.
func (c core) SubmittedBy() string { return c.claim().Claimed.Submitter }

// ClaimedAt is the database's time of the claim.
func (c core) ClaimedAt() time.Time { return c.claim().Claimed.ClaimedAt }

// Path is how this claim came about: "fast" (born running) or "poll".
func (c core) Path() string { return c.claim().Claimed.Path }

// PreviousResult decodes the result of the step before into v. It returns [job.ErrNotFound] when there is none.
func (c core) PreviousResult(ctx context.Context, v any) error {
	result, err := c.claim().PreviousResult(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(result, v)
}

// Branches reads what the branches of the fan-out came to that this job joins. As [Runner.Branches]; [job.ErrNotFound] also in
// a child, whose siblings have not ended.
func (c core) Branches(ctx context.Context) iter.Seq2[Branch, error] {
	return c.claim().Writer.Branches(ctx)
}

// Tx runs write in a transaction of the host's pool that holds this claim's lease, and commits it together with the
// checkpoint (nil: none): a former owner that wakes up cannot write a batch twice. The checkpoint is encoded after write,
// so that a pointer may hold what write learnt. When the connection breaks, write runs again in a new transaction; only
// one commit counts, and a commit whose reply was lost is looked up. It returns write's error, [job.ErrLeaseLost],
// [job.ErrGone] or [job.ErrCancelled], with nothing written. The transactions of a job take turns; Tx or Checkpoint called by write
// itself returns an error at once.
func (c core) Tx(ctx context.Context, write func(tx pgx.Tx) error, checkpoint any) error {
	if checkpoint == nil {
		return c.claim().Tx(ctx, write, nil)
	}
	return c.claim().Tx(ctx, write, func() (json.RawMessage, error) { return c.encode(checkpoint) })
}

// Write runs the statements of a batch in a transaction of the host's pool that holds this claim's lease, and commits them together with the
// checkpoint (nil: none): both are kept, or neither. It takes three round trips, however many statements there are. Use [Job.Tx] to read
// between writes. The checkpoint is encoded as that of [Job.Checkpoint] is. The statements are those of [Outcome.Write], with its limits: at
// most 100, and 1 MiB; none may have a function that reads its result.
//
// When the connection breaks, or PostgreSQL ends a deadlock (40P01) or reports a serialization failure (40001), the statements run again in a
// new transaction; only one commit counts, and a commit whose reply was lost is read back. It returns [job.ErrInvalid] or
// [job.ErrTooLarge] for statements that are refused, the error of a statement with the job, its number and PostgreSQL's code,
// [job.ErrLeaseLost], [job.ErrGone] or [job.ErrCancelled], with nothing written. The transactions of a job
// take turns, as those of Tx do. On a remote worker it returns [ErrNoDatabase].
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

// Checkpoint keeps v as the job's checkpoint: how far it is, for the run that goes on after a crash, an error or a
// shutdown. It costs one round trip; a handler that writes as well uses [Job.Write] or [Job.Tx], so that both are one commit. v encodes
// to at most 1 MiB of JSON. A checkpoint sets the count of the job's crashes back.
//
// It is kept when Checkpoint returns nil, and while the connection breaks it is tried again until ctx ends. It returns
// [job.ErrLeaseLost], [job.ErrGone] or [job.ErrCancelled], with nothing kept. A handler that is told to end by [job.ErrShutdown] can
// still keep one, with [context.WithoutCancel]. While a transaction of the job is open Checkpoint waits for it, at most ten
// seconds.
func (c core) Checkpoint(ctx context.Context, v any) error {
	kept, err := c.encode(v)
	if err != nil {
		return err
	}
	return c.claim().Checkpoint(ctx, kept)
}

// encode encodes a checkpoint.
func (c core) encode(v any) (json.RawMessage, error) {
	kept, err := work.Encode(v, job.MaxArgsBytes)
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint of job %d: %w", c.ID(), err)
	}
	return kept, nil
}

// LastCheckpoint decodes the job's latest checkpoint into v and reports whether there is one: the last that this run kept,
// or else the last of the runs before. Checkpoints survive errors, crashes and takeovers.
func (c core) LastCheckpoint(v any) (bool, error) {
	last := c.claim().LastCheckpoint()
	if last == nil {
		return false, nil
	}
	return true, json.Unmarshal(last, v)
}

// Progress notes how far the job is: units done of a total, for progress bars. It never waits for the database: at most a
// few notes a second are written, the latest always.
func (c core) Progress(done, total int64) {
	c.claim().Writer.Progress(job.Progress{Done: &done, Total: &total})
}

// Message notes in a few words what the job is doing. As [Job.Progress].
func (c core) Message(text string) {
	text = job.Storable(text, 500)
	c.claim().Writer.Progress(job.Progress{Message: &text})
}

// Emit appends an event to the job's history. fields encode to JSON, at most 1 MiB; nil is none. level is debug, info, warn
// or error; empty is info.
//
// The first event is visible when Emit returns. A job writes events four times a second at most: those that follow too
// soon are written together, in order, within a quarter of a second, and in any case before the job's end is. When 4,096 of
// them, or 1 MiB, wait for that, Emit waits as well. An event that is emitted while a [Job.Tx] or InTx of this job is open
// is visible with its commit. A crash of the process loses the events that wait, those of the last quarter of a second, and none from
// before them.
//
// When events that were to be written later could not be, the log says so, and the next Emit returns the error. After an
// error the event of this call is not in the history, unless the reply of the database was lost. It returns
// [job.ErrLeaseLost] when the job has been given to another claim, or its handler has returned, and [job.ErrGone] when the job was deleted.
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

// Token returns the secret with which this job's parts are completed from outside, after its handler returned [Deferred]: hand it to
// whoever does the work, with the job's id. It is the same in every try of the job. [job.ErrLeaseLost]: the claim is not ours.
func (c core) Token(ctx context.Context) (string, error) {
	return c.claim().Writer.CompletionToken(ctx)
}
