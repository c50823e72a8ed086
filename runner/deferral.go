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

// CompleteOption says more of a part that is completed.
type CompleteOption func(*completion)

type completion struct {
	part    string
	failure string
	by      string
}

// Part names the part, where a job has several: each counts once, however often it is completed. At most 500 bytes.
func Part(name string) CompleteOption { return func(c *completion) { c.part = name } }

// PartFailed says that the part has failed. It counts as ended; [Deferred] says what becomes of the job.
func PartFailed(err error) CompleteOption {
	return func(c *completion) { c.failure = job.Storable("failed: "+err.Error(), job.MaxErrorBytes) }
}

// CompletedBy names the operator who completes the part, for the audit. Without it, whoever has the token is nobody's business.
func CompletedBy(actor string) CompleteOption { return func(c *completion) { c.by = named(actor) } }

// Complete ends one part of a job that is [Deferred], from any process: with the token that its handler got, and with a result that
// encodes to JSON (nil: none). It may come before the handler has returned. When it was the last part, the job ends and what follows
// it is inserted. The same part a second time changes nothing.
//
// Errors: [job.ErrNotFound], [job.ErrWrongToken], [job.ErrAlreadyTerminal] (all parts are in already, or the job was cancelled),
// [job.ErrInvalid], [job.ErrTooLarge], and [job.ErrOutcomeUnknown]: complete it again.
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

// Branches reads what the branches of a job that fanned out came to, in the order of the fan-out, page by page: 10,000 results need
// not be in memory at once. Iteration ends with the first error. [job.ErrNotFound]: the job never fanned out.
func (r *Runner) Branches(ctx context.Context, id int64) iter.Seq2[Branch, error] {
	return r.pod.Branches(ctx, id)
}
