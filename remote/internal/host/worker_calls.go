package host

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// claimOf returns the job of a remote worker's claim. If another pod serves the worker's stream, claimOf reads the claim from the tables
// and prepares a job for this one call. The caller must call leave when done. claimOf returns [job.ErrLeaseLost] if the claim was lost,
// [job.ErrGone] if the job was deleted, [ErrWrongToken] if the token does not match the claim, and [ErrClosed] if owner has no worker with
// this ID.
func (h *Host) claimOf(ctx context.Context, id, owner string, claim Claim) (j *work.Job, leave func(), err error) {
	if g := h.find(id); g != nil && g.opts.Owner == owner {
		if !validToken(g.key, id, claim) {
			return nil, nil, fmt.Errorf("job %d: %w", claim.ID, ErrWrongToken)
		}
		if run := g.engine.Runs.Find(claim.ID, claim.Fence); run != nil {
			if run.IsLost() {
				return nil, nil, fmt.Errorf("job %d: %w", claim.ID, run.Loss())
			}
			return &run.Job, func() {}, nil
		}
	}
	row, err := h.workerRow(ctx, id, owner)
	if err != nil {
		return nil, nil, err
	}
	if !validToken(row.Key, id, claim) {
		return nil, nil, fmt.Errorf("job %d: %w", claim.ID, ErrWrongToken)
	}
	lease := job.Lease{JobID: claim.ID, Fence: claim.Fence, Pod: id}
	held, err := store.ClaimsToAdopt(ctx, h.pod.RemoteStore, id, []job.Lease{lease})
	if err != nil {
		return nil, nil, h.pod.DBError(err)
	}
	if len(held) == 0 {
		return nil, nil, fmt.Errorf("job %d: %w", claim.ID, h.pod.Commands.Lost(ctx, lease))
	}
	run := h.pod.Prepare(&held[0].Claimed, lease)
	return &run.Job, run.Events.Close, nil
}

// Emit is [runner.Job.Emit] for a remote worker's claim. It returns [job.ErrOutcomeUnknown] if the event may have been written.
func (h *Host) Emit(ctx context.Context, id, owner string, claim Claim, event, level, message string, fields json.RawMessage) error {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return err
	}
	defer leave()
	if len(fields) == 0 {
		fields = nil
	} else if fields, err = work.Encode(fields, job.MaxArgsBytes); err != nil {
		return fmt.Errorf("encode fields of event %s: %w", event, err)
	}
	if err = j.Emit(ctx, event, level, message, fields); store.Unknown(err) {
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	}
	return err
}

// Checkpoint stores a checkpoint for a remote worker's claim.
func (h *Host) Checkpoint(ctx context.Context, id, owner string, claim Claim, v json.RawMessage) error {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return err
	}
	defer leave()
	if v, err = work.Encode(v, job.MaxArgsBytes); err != nil {
		return fmt.Errorf("encode checkpoint of job %d: %w", claim.ID, err)
	}
	return j.Checkpoint(ctx, v)
}

// Stack stores the stack that a remote worker sent for a claim, as the response to the operators who requested it.
func (h *Host) Stack(ctx context.Context, id, owner string, claim Claim, stack string) error {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return err
	}
	defer leave()
	return h.pod.DBError(store.AnswerStack(ctx, h.pod.RemoteStore, j.Lease, job.Storable(stack, engine.MaxStackBytes)))
}

// PreviousResult returns the result of the job that precedes a claimed job, or nil if there is none.
func (h *Host) PreviousResult(ctx context.Context, id, owner string, claim Claim) (json.RawMessage, error) {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return nil, err
	}
	defer leave()
	return j.PreviousResult(ctx)
}

// Failure returns the failed job that caused the claimed on-failure job to be submitted.
func (h *Host) Failure(ctx context.Context, id, owner string, claim Claim) (job.Failure, error) {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return job.Failure{}, err
	}
	defer leave()
	return j.Writer.Failure(ctx)
}

// Token is [runner.Job.Token] for a remote worker's claim.
func (h *Host) Token(ctx context.Context, id, owner string, claim Claim) (string, error) {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return "", err
	}
	defer leave()
	return j.Writer.CompletionToken(ctx)
}

// Branches returns a page of the branches that a claimed job joins, starting after the given number: first the children by number, then the
// parts by name. A page ends before the branch that would bring its results above most bytes. If more branches follow, more is true.
func (h *Host) Branches(ctx context.Context, id, owner string, claim Claim, after, most int) (page []job.Branch, more bool, err error) {
	j, leave, err := h.claimOf(ctx, id, owner, claim)
	if err != nil {
		return nil, false, err
	}
	defer leave()
	bytes, n := 0, 0
	for b, err := range j.Writer.Branches(ctx) {
		if err != nil {
			return nil, false, err
		}
		if n++; n <= after {
			continue
		}
		if bytes += 200 + len(b.JSON); bytes > most && len(page) > 0 {
			return page, true, nil
		}
		page = append(page, b)
	}
	return page, false, nil
}
