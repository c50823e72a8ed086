package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Job is a claimed job as passed to its handler. It is safe for concurrent use.
type Job struct {
	Claimed *store.Claimed
	Lease   job.Lease
	Pod     string // display name
	// MaxAttempts is the number of attempts after which a handler error fails the job.
	MaxAttempts int
	Writer      Writer
	kept        atomic.Pointer[json.RawMessage] // the latest checkpoint of this run; nil if there is none
}

// Writer performs a handler's database writes and reads, directly on a pod or over the network on a remote worker. Texts must be storable,
// which [Job.Emit] ensures. JSON must be valid and within the size limits.
type Writer interface {
	// Tx runs write in a transaction that locks the job's lease, and commits it together with the checkpoint that encode returns. If the
	// transaction is retried, both functions are called again. If encode is nil, no checkpoint is stored.
	Tx(ctx context.Context, write TxFunc, encode func() (json.RawMessage, error)) error
	// Write runs statements in a transaction that locks the job's lease, and commits them together with checkpoint, which can be nil.
	Write(ctx context.Context, statements Writes, checkpoint json.RawMessage) error
	// Progress records the job's progress. It does not block.
	Progress(p job.Progress)
	// Emit appends an event to the job's history.
	Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error
	// Checkpoint stores a checkpoint.
	Checkpoint(ctx context.Context, v json.RawMessage) error
	// PreviousResult returns the result of the job's parent, or nil if there is none.
	PreviousResult(ctx context.Context) (json.RawMessage, error)
	// Failure returns the failed job that caused this failure step, or the pipeline that it belongs to, to be submitted.
	Failure(ctx context.Context) (job.Failure, error)
	// Branches yields the branches that the job joins.
	Branches(ctx context.Context) iter.Seq2[job.Branch, error]
	// CompletionToken returns the secret required to complete parts of the job.
	CompletionToken(ctx context.Context) (string, error)
}

// Unclaimed represents a job that no runner has claimed.
var Unclaimed = Job{Writer: unclaimed{}, Claimed: &store.Claimed{Definition: store.Definition{ParentID: new(int64)}}} // ParentID is set so that reading a parent fails too

// unclaimed is a Writer whose operations fail.
type unclaimed struct{}

var errUnclaimed = errors.New("job without a claim: use the job that the runner passes to the handler, or runnertest.Call in a test")

func (unclaimed) Tx(context.Context, TxFunc, func() (json.RawMessage, error)) error {
	return errUnclaimed
}
func (unclaimed) Write(context.Context, Writes, json.RawMessage) error { return errUnclaimed }
func (unclaimed) Progress(job.Progress)                                {}
func (unclaimed) Emit(context.Context, string, string, string, json.RawMessage) error {
	return errUnclaimed
}
func (unclaimed) Checkpoint(context.Context, json.RawMessage) error { return errUnclaimed }
func (unclaimed) PreviousResult(context.Context) (json.RawMessage, error) {
	return nil, errUnclaimed
}
func (unclaimed) Failure(context.Context) (job.Failure, error) { return job.Failure{}, errUnclaimed }
func (unclaimed) Branches(context.Context) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) { yield(job.Branch{}, errUnclaimed) }
}
func (unclaimed) CompletionToken(context.Context) (string, error) { return "", errUnclaimed }

// TxFunc makes a handler's writes in a transaction.
type TxFunc func(tx pgx.Tx) error

// Tx calls [Writer.Tx] and keeps the committed checkpoint.
func (j *Job) Tx(ctx context.Context, write TxFunc, encode func() (json.RawMessage, error)) error {
	if encode == nil {
		return j.Writer.Tx(ctx, write, nil)
	}
	var latest json.RawMessage // checkpoint of the latest attempt
	err := j.Writer.Tx(ctx, write, func() (_ json.RawMessage, err error) {
		latest, err = encode()
		return latest, err
	})
	if err == nil {
		j.kept.Store(&latest)
	}
	return err
}

// Write checks the statements, calls [Writer.Write] and keeps the checkpoint, if any.
func (j *Job) Write(ctx context.Context, statements Writes, checkpoint json.RawMessage) error {
	if err := statements.check(); err != nil {
		return err
	}
	if err := j.Writer.Write(ctx, statements, checkpoint); err != nil {
		return err
	}
	if checkpoint != nil {
		j.kept.Store(&checkpoint)
	}
	return nil
}

// Checkpoint calls [Writer.Checkpoint] and keeps v.
func (j *Job) Checkpoint(ctx context.Context, v json.RawMessage) error {
	if err := j.Writer.Checkpoint(ctx, v); err != nil {
		return err
	}
	j.kept.Store(&v)
	return nil
}

// LastCheckpoint returns the latest checkpoint of this run or, if it has none, of an earlier run. It returns nil if there is no checkpoint.
func (j *Job) LastCheckpoint() json.RawMessage {
	if kept := j.kept.Load(); kept != nil {
		return *kept
	}
	return j.Claimed.Checkpoint
}

// levels lists the valid event levels. The empty level means info.
var levels = []string{"", "debug", "info", "warn", "error"}

// Emit makes the texts storable, then calls [Writer.Emit]. It returns [job.ErrInvalid] if the level is unknown, or if the event could be
// mistaken for one of Trapeze's.
func (j *Job) Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error {
	switch {
	case event == "" || strings.HasPrefix(event, "job."):
		return fmt.Errorf("%w: emit event %q of job %d: want a name without the prefix job., which is reserved for Trapeze", job.ErrInvalid, event, j.Claimed.ID)
	case !slices.Contains(levels, level):
		return fmt.Errorf("%w: emit event %s of job %d: level %q, want debug, info, warn or error", job.ErrInvalid, event, j.Claimed.ID, level)
	}
	return j.Writer.Emit(ctx, job.Storable(event, 100), job.Storable(level, 20), job.Storable(message, job.MaxErrorBytes), fields)
}

// PreviousResult returns the result of the job's parent, or [job.ErrNotFound] if there is none.
func (j *Job) PreviousResult(ctx context.Context) (json.RawMessage, error) {
	if j.Claimed.ParentID == nil {
		return nil, fmt.Errorf("read the parent of job %d: %w", j.Claimed.ID, job.ErrNotFound)
	}
	result, err := j.Writer.PreviousResult(ctx)
	if err == nil && result == nil {
		err = fmt.Errorf("job %d ended without a result: %w", *j.Claimed.ParentID, job.ErrNotFound)
	}
	return result, err
}

// Outcome is a handler's return value on success. Except for its writes, it can be stored as JSON. At most one of Next, Snooze and Fan is
// set. A nil Outcome is a success without a result.
type Outcome struct {
	Result json.RawMessage `json:",omitempty"` // encoded by [EncodeResult]; nil if there is none
	Status job.OutcomeStatus
	Next   *Submission // nil means the planned step, if any
	Writes Writes      `json:"-"` // written in the commit that ends the job
	Snooze *Snooze     // if set, the job waits and runs again
	Fan    *FanOut     // if set, the job waits for its branches

	EndChain bool   // do not run the steps planned after the job
	Undo     []Step // steps to run if a later step fails, or if this run fails after the handler has returned
}

// Validate rejects a negative wait and writes of a snoozed job, and statements that are not allowed, too many or too large. It does not check the jobs to be
// submitted.
func (o *Outcome) Validate() error {
	if o.Snooze != nil && len(o.Writes) > 0 {
		return job.Permanent(errors.New("a snoozed job has not ended, so no commit can include its writes: use Job.Tx"))
	}
	if o.Snooze != nil && o.Snooze.Wait < 0 {
		// This is not permanent: a time that has just passed has usually been dealt with on the next attempt.
		return fmt.Errorf("snooze of %s is negative: continue, or wait 0 or more", o.Snooze.Wait)
	}
	return job.Permanent(o.Writes.check())
}

// Snooze makes a job wait and then run again, without a result.
type Snooze struct {
	Wait    time.Duration // 0 means no wait
	Backoff bool          // double the wait on each snooze
	Why     string
}

// FanOut describes the branches that a job waits for: children, parts that are completed externally, or both.
type FanOut struct {
	Children []*Submission
	Parts    int
	FailFast bool
	Join     []Step // steps to run after the last branch and before the planned steps; can be nil
}
