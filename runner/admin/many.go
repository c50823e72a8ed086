package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pod"
	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// manyJobs is the maximum number of jobs that one command affects. manySample is the maximum number of ids that it returns.
	manyJobs   = 10_000
	manySample = 10
	// retryPage is the number of jobs that one transaction retries.
	retryPage = 200
)

// BulkResult is the result of a command that applies to all jobs that match a filter.
type BulkResult struct {
	Matched int     // number of jobs selected
	Sample  []int64 // ids of the first jobs selected
	More    bool    // more than 10,000 jobs match; repeat the command to affect the rest
	DryRun  bool    // nothing was changed
	Done    int     // jobs cancelled or being cancelled; or jobs retried, not counting their branches
	Skipped int     // jobs skipped because their state had changed, or because they could not be retried
}

// CancelMany cancels all unfinished jobs that match a filter, as [Admin.Cancel] does. It works in batches and affects at most 10,000 jobs.
// With dryRun, it only counts them. The command writes one audit entry, even if no job matches.
//
// It returns [job.ErrInvalid] if the filter is empty or names a final state, and [job.ErrOutcomeUnknown] if the connection was lost. After
// an error, the result covers the batches that were completed before it.
func (a Admin) CancelMany(ctx context.Context, f job.Filter, dryRun bool) (BulkResult, error) {
	m, ids, err := match(ctx, a.pod, f, false, dryRun)
	if err != nil || dryRun {
		return m, err
	}
	d := auditEntry("jobs.cancel", a.actor, f, ids)
	if len(ids) == 0 {
		return m, a.pod.CommandError(statements.Audit(ctx, a.pod.Commands, *d))
	}
	var more []int64
	for page := range slices.Chunk(ids, engine.CancelPage) {
		off, done, err := a.pod.CancelBatch(ctx, page, a.actor, d)
		more, d = append(more, off...), nil
		m.Done += done
		if err != nil {
			return m, fmt.Errorf("cancel %d jobs: %w", len(ids), a.pod.CommandError(err))
		}
	}
	m.Skipped = len(ids) - m.Done
	if err := a.pod.SettleFanOut(ctx, more...); err != nil {
		a.pod.Log.WarnContext(ctx, "fan-outs of cancelled jobs not settled yet", telemetry.Err, a.pod.DBError(err))
	}
	a.pod.Wake()
	return m, nil
}

// RetryMany retries all failed jobs that match a filter, as [Admin.Retry] does. It retries cancelled jobs only if the filter names that
// state. It works in batches and affects at most 10,000 jobs. With dryRun, it only counts them. The command writes one audit entry. It
// returns the same errors as [Admin.CancelMany].
func (a Admin) RetryMany(ctx context.Context, f job.Filter, dryRun bool) (BulkResult, error) {
	m, ids, err := match(ctx, a.pod, f, true, dryRun)
	if err != nil || dryRun {
		return m, err
	}
	d := auditEntry("jobs.retry", a.actor, f, ids)
	if len(ids) == 0 {
		return m, a.pod.CommandError(statements.Audit(ctx, a.pod.Commands, *d))
	}
	for page := range slices.Chunk(ids, retryPage) {
		did, err := statements.RetryMany(ctx, a.pod.Commands, page, a.actor, d)
		d = nil
		if err != nil {
			return m, fmt.Errorf("retry %d jobs: %w", len(ids), a.pod.CommandError(err))
		}
		m.Done += len(page) - len(did.Refused)
		m.Skipped += len(did.Refused)
	}
	a.wakeRetried(ctx)
	return m, nil
}

// unfit explains why jobs in a state cannot be cancelled or, when ended is true, retried.
func unfit(state job.State, ended bool) string {
	if ended {
		return fmt.Sprintf("only failed and cancelled jobs can be retried, not %s ones", state)
	}
	return fmt.Sprintf("%s jobs have finished and cannot be cancelled", state)
}

// match returns the jobs that a command applies to.
func match(ctx context.Context, p *pod.Pod, f job.Filter, ended, dryRun bool) (m BulkResult, ids []int64, err error) {
	m.DryRun = dryRun
	if !f.Any() {
		return m, nil, fmt.Errorf("%w: the filter is empty", job.ErrInvalid)
	}
	if f.Owner != "" && f.Failures == "" {
		return m, nil, fmt.Errorf("%w: owner: only a retry of failures can use it", job.ErrInvalid)
	}
	if f.Failures != "" {
		if ids, err = failed(ctx, p, f, ended); err != nil {
			return m, nil, err
		}
		m.Matched, m.Sample = len(ids), ids[:min(len(ids), manySample)]
		return m, ids, nil
	}
	for _, state := range f.States {
		if state.Terminal() != ended || state == job.Succeeded {
			return m, nil, fmt.Errorf("%w: %s", job.ErrInvalid, unfit(state, ended))
		}
	}
	if ended && len(f.States) == 0 {
		f.States = []job.State{job.Failed}
	}
	for after := int64(0); ; {
		page, err := statements.Match(ctx, p.Commands, f, ended, after, min(1000, manyJobs+1-len(ids)))
		if err != nil {
			return m, nil, p.DBError(err)
		}
		ids = append(ids, page...)
		if len(page) == 0 || len(ids) > manyJobs {
			break
		}
		after = page[len(page)-1]
	}
	if m.More = len(ids) > manyJobs; m.More {
		ids = ids[:manyJobs]
	}
	m.Matched, m.Sample = len(ids), ids[:min(len(ids), manySample)]
	return m, ids, nil
}

// failed returns the jobs in the failure set that a filter names.
func failed(ctx context.Context, p *pod.Pod, f job.Filter, ended bool) ([]int64, error) {
	if err := f.Validate(); err != nil || !ended {
		return nil, fmt.Errorf("%w: failures: only a retry without other filters can use it", job.ErrInvalid)
	}
	ids, err := view.FailureSet(ctx, p.Commands, f.Failures, f.Owner)
	return ids, p.DBError(err)
}

// auditEntry returns the audit entry of a command that affects many jobs. It records the filter and the number of jobs.
func auditEntry(action, actor string, f job.Filter, ids []int64) *statements.AuditEntry {
	return &statements.AuditEntry{Actor: actor, Action: action, Target: "jobs", After: map[string]any{"filter": f, "matched": len(ids)}}
}

// Retry retries a failed or cancelled job in a new epoch. If args is not nil, it replaces the job's arguments. The job's fence continues
// to increase, its attempts and crashes are counted from zero again, and the job holds its unique key again until it is claimed.
//
// A job that fanned out does not run again: it waits for its unsuccessful branches, which are retried in the same way. A retried branch
// counts toward its fan-out again if the fan-out has not finished; otherwise it runs independently. A job that needed approval when it was
// submitted needs it again if it never ran, or if its arguments have changed. Retry returns the ids of the jobs that it made pending.
//
// It returns [job.ErrNotFound] if the job does not exist, [job.ErrNotFailed] if it is neither failed nor cancelled, [job.ErrStillEnding] if
// related jobs have not ended yet, and [job.ErrOutcomeUnknown] if the connection was lost. It returns [job.ErrInvalidArgs] if args is
// invalid, and [job.ErrInvalid] if args is set for a job that fanned out. It returns [job.ErrPruned] if data that it needs was pruned or
// erased, and [job.ErrKeyHeld] if another job holds a unique key that the retry needs.
func (a Admin) Retry(ctx context.Context, id int64, args any) ([]int64, error) {
	encoded, err := encodeNewArgs(args)
	if err != nil {
		return nil, fmt.Errorf("%w (the new args of job %d)", err, id)
	}
	again, err := statements.Retry(ctx, a.pod.Commands, id, encoded, a.actor)
	if err != nil {
		return nil, a.pod.CommandError(err)
	}
	a.wakeRetried(ctx)
	return again, nil
}

// encodeNewArgs encodes a retry's new arguments. It returns nil if args is nil, which leaves them unchanged.
func encodeNewArgs(args any) (json.RawMessage, error) {
	if args == nil {
		return nil, nil
	}
	return work.Encode(args, job.MaxArgsBytes)
}

// wakeRetried settles fan-outs after a retry and wakes the pods to claim the retried jobs.
func (a Admin) wakeRetried(ctx context.Context) {
	a.pod.SettleAfter(ctx) // a retried fan-out may have no unfinished branches left
	a.pod.WakeDue()
	a.pod.WakePeers()
}
