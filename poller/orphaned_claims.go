package poller

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// HandBackOrphans hands back jobs that, after a lost reply, the table assigns to this pod without this process knowing about them. It reads
// the table before the list of known jobs, so that a job that starts in between is not mistaken for an orphan. Every statement that assigns
// jobs, except for claims, is sent after its jobs have been registered as known. Claims hold the poller's lock until their jobs are known,
// and HandBackOrphans holds the same lock while it reads.
func (p *Poller) HandBackOrphans(ctx context.Context) error {
	if !p.Unknown.Due() {
		return nil
	}
	began, podID := time.Now(), p.PodID()
	known := map[job.Lease]bool{}
	p.mu.Lock()
	held, ok, err := p.member.Claims(ctx, podID)
	p.engine.AddKnown(known)
	p.mu.Unlock()
	if err != nil || !ok {
		return err
	}
	var orphans []job.Lease
	var cancelled []store.Ending
	ends := map[int64]job.End{} // by id, for the jobs in cancelled
	for _, h := range held {
		lease := job.Lease{JobID: h.ID, Fence: h.Fence, Pod: podID}
		switch {
		case known[lease]:
		case h.CancelRequested:
			cancelled = append(cancelled, store.Ending{ID: h.ID, Fence: h.Fence, State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled,
				Branch: h.Branch})
			ends[h.ID] = job.End{ID: h.ID, PipelineID: h.PipelineID, Kind: h.Kind, Lane: h.Lane, Subject: h.Subject, Attempt: h.Attempt,
				State: job.Cancelled, Reason: job.ReasonCancelled}
		default:
			orphans = append(orphans, lease)
		}
	}
	if len(orphans) > 0 {
		back, err := p.Store.HandBack(ctx, podID, orphans, "unknown to its pod: a reply or an outcome was lost")
		if err != nil {
			return err
		}
		p.Log.WarnContext(ctx, "handed back jobs of this pod that are unknown to it: a reply or an outcome was lost", telemetry.Jobs, len(back), telemetry.Pod, p.Opts.Name)
		for _, h := range held {
			if back[h.ID] {
				p.LinesChanged(store.Lines(h.Kind, h.Subject, h.Key)...)
			}
		}
		p.WakeAll()
	}
	if len(cancelled) > 0 {
		ended, err := p.Store.Finish(ctx, podID, cancelled)
		if err != nil {
			return err
		}
		for id, e := range ended {
			p.Ends.Report(nil, ends[id])
			p.Ended(e, ends[id].Kind, ends[id].Subject, ends[id].Key)
		}
	}
	p.Unknown.Checked(began)
	return nil
}
