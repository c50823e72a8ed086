package runner

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// CompleteOption sets an option of [Runner.Complete].
type CompleteOption func(*completion)

type completion struct {
	part    string
	failure string
	by      string
}

// Part sets the name of the part, for a job with several. Each part counts once, even if it is completed more than once. At most 500
// bytes.
func Part(name string) CompleteOption { return func(c *completion) { c.part = name } }

// PartFailed marks the part as failed. A failed part counts as ended; [Deferred] describes the effect on the job.
func PartFailed(err error) CompleteOption {
	return func(c *completion) { c.failure = job.Storable("failed: "+err.Error(), job.MaxErrorBytes) }
}

// CompletedBy sets the operator who completes the part, for the audit log. Without it, no audit entry is written: the token is proof
// enough.
func CompletedBy(actor string) CompleteOption { return func(c *completion) { c.by = named(actor) } }

// Complete completes one part of a [Deferred] job, from any process. It needs the token that the job's handler got from [Job.Token].
// The result is encoded to JSON; nil is none. It may be called before the handler has returned. After the last part, the job ends
// and its next step is inserted. Completing the same part again has no effect.
//
// Errors: [job.ErrNotFound]; [job.ErrWrongToken]; [job.ErrAlreadyTerminal] if all parts are complete or the job was cancelled;
// [job.ErrInvalid]; [job.ErrTooLarge]; and [job.ErrOutcomeUnknown], after which the call can be repeated.
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

// Branches returns the outcomes of the branches of a job that fanned out, in the order of the fan-out. It reads them page by page,
// so that 10,000 results need not be in memory at once. Iteration stops at the first error, which is [job.ErrNotFound] if the job
// never fanned out.
func (r *Runner) Branches(ctx context.Context, id int64) iter.Seq2[Branch, error] {
	return r.pod.Branches(ctx, id)
}
