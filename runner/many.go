package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// manyJobs is how many jobs one command is for at most, manySample how many of them it names.
	manyJobs   = 10_000
	manySample = 10
	// retryPage is how many jobs one transaction tries again.
	retryPage = 200
)

// Many is what a command for all jobs of a filter came to.
type Many struct {
	Matched int     // so many jobs are selected
	Sample  []int64 // the first of them
	More    bool    // there are others beyond the 10,000 that one command is for: give it again
	DryRun  bool    // nothing was done
	Done    int     // cancelled, or being cancelled; or tried again, without the branches that went with them
	Passed  int     // had moved meanwhile, or could not be tried again
}

// CancelMany ends all jobs that a filter selects and that have not ended, as [Admin.Cancel] does: in batches, at most 10,000. With dryRun it only
// tells how many they would be. It is written down as one deed. Errors: [job.ErrInvalid] for a filter that selects everything or
// states that have ended; [job.ErrOutcomeUnknown]. What was done before an error stands in the answer.
func (a Admin) CancelMany(ctx context.Context, f job.Filter, dryRun bool, actor string) (Many, error) {
	actor = named(actor)
	m, ids, err := match(ctx, a.pod, f, false, dryRun)
	if err != nil || dryRun {
		return m, err
	}
	d := auditEntry("jobs.cancel", actor, f, ids)
	var more []int64
	for page := range slices.Chunk(ids, engine.CancelPage) {
		off, done, err := a.cancelBatch(ctx, page, actor, d)
		more, d = append(more, off...), nil
		m.Done += done
		if err != nil {
			return m, fmt.Errorf("cancel %d jobs: %w", len(ids), a.pod.CommandError(err))
		}
	}
	m.Passed = len(ids) - m.Done
	if err := a.pod.SettleFanOut(ctx, more...); err != nil {
		a.pod.Log.WarnContext(ctx, "fan-outs of cancelled jobs not settled yet", telemetry.Err, a.pod.DBError(err))
	}
	a.pod.Wake()
	return m, nil
}

// cancelBatch cancels one batch, those that somebody holds one by one, and returns the fan-outs that this leaves off balance.
func (a Admin) cancelBatch(ctx context.Context, ids []int64, actor string, d *admin.AuditEntry) (more []int64, done int, err error) {
	c, err := admin.CancelMany(ctx, a.pod.Commands, ids, job.ReasonCancelled, actor, d)
	if err != nil {
		return nil, 0, err
	}
	a.pod.Ends.ReportAll(c.Ended)
	seen := make(map[int64]bool, len(ids))
	for _, end := range c.Ended {
		seen[end.ID] = true
		a.pod.Waiters.Seen(end.ID)
	}
	for _, l := range c.Asked {
		seen[l.JobID] = true
		a.pod.TellRun(l)
	}
	if len(c.Asked) > 0 {
		a.pod.WakePeers()
	}
	for _, id := range ids {
		if seen[id] {
			continue
		}
		switch err := a.pod.CancelAmong(ctx, id, actor); {
		case err == nil:
			seen[id] = true
		case !errors.Is(err, job.ErrAlreadyTerminal) && !errors.Is(err, job.ErrNotFound):
			return c.OffBalance, len(seen), err
		}
	}
	return c.OffBalance, len(seen), nil
}

// RunManyAgain runs all jobs again that a filter selects and that failed, or, where it names that state, were cancelled, as [Admin.RunAgain]
// does: in batches, at most 10,000. With dryRun it only tells how many they would be. It is written down as one deed. Errors: as of
// [Admin.CancelMany].
func (a Admin) RunManyAgain(ctx context.Context, f job.Filter, dryRun bool, actor string) (Many, error) {
	actor = named(actor)
	m, ids, err := match(ctx, a.pod, f, true, dryRun)
	if err != nil || dryRun {
		return m, err
	}
	d := auditEntry("jobs.retry", actor, f, ids)
	for page := range slices.Chunk(ids, retryPage) {
		did, err := admin.RetryMany(ctx, a.pod.Commands, page, actor, d)
		d = nil
		if err != nil {
			return m, fmt.Errorf("retry %d jobs: %w", len(ids), a.pod.CommandError(err))
		}
		m.Done += len(page) - len(did.Refused)
		m.Passed += len(did.Refused)
	}
	a.wakeRetried(ctx)
	return m, nil
}

// unfit is the reason why the jobs of a state cannot be cancelled or, when ended is true, retried.
func unfit(state job.State, ended bool) string {
	if ended {
		return fmt.Sprintf("only failed and cancelled jobs can be retried, not %s ones", state)
	}
	return fmt.Sprintf("%s jobs have finished and cannot be cancelled", state)
}

// match finds the jobs that a command is for.
func match(ctx context.Context, p *pod.Pod, f job.Filter, ended, dryRun bool) (m Many, ids []int64, err error) {
	m.DryRun = dryRun
	if !f.Any() {
		return m, nil, fmt.Errorf("%w: the filter is empty", job.ErrInvalid)
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
		page, err := admin.Match(ctx, p.Commands, f, ended, after, min(1000, manyJobs+1-len(ids)))
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

// auditEntry returns the audit entry of a command for many jobs: their filter and their number.
func auditEntry(action, actor string, f job.Filter, ids []int64) *admin.AuditEntry {
	return &admin.AuditEntry{Actor: actor, Action: action, Target: "jobs", After: map[string]any{"filter": f, "matched": len(ids)}}
}
