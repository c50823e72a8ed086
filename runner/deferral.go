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

// Part names the part to complete, for a job with several parts. Each part counts only once, even if it is completed again. A name has at
// most 500 bytes.
func Part(name string) CompleteOption { return func(c *completion) { c.part = name } }

// PartFailed marks the part as failed. A failed part counts as complete; [Deferred] describes how it affects the job.
func PartFailed(err error) CompleteOption {
	return func(c *completion) { c.failure = job.Storable("failed: "+err.Error(), job.MaxErrorBytes) }
}

// CompletedBy records in the audit log which operator completed the part. Without it, no audit entry is written, because the token is
// sufficient authorization.
func CompletedBy(actor string) CompleteOption { return func(c *completion) { c.by = named(actor) } }

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
