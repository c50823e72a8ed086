package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// handBackOrphans hands back jobs that, after a lost reply, the table assigns to this pod without this process knowing about them. It reads
// the table before the list of known jobs, so that a job that starts in between is not mistaken for an orphan. Every statement that assigns
// jobs, except for claims, is sent after its jobs have been registered as known. Claims hold the claimer's lock until their jobs are known,
// and handBackOrphans holds the same lock while it reads.
func (s *sweeper) handBackOrphans(ctx context.Context) error {
	if !s.Unknown.Due() {
		return nil
	}
	began, podID := time.Now(), s.PodID()
	known := map[job.Lease]bool{}
	s.claims.mu.Lock()
	held, ok, err := s.Member.Claims(ctx, podID)
	s.AddKnown(known)
	s.claims.mu.Unlock()
	if err != nil || !ok {
		return s.DBError(err)
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
		back, err := s.Store.HandBack(ctx, podID, orphans, "unknown to its pod: a reply or an outcome was lost")
		if err != nil {
			return s.DBError(err)
		}
		s.Log.WarnContext(ctx, "handed back jobs of this pod that are unknown to it: a reply or an outcome was lost", telemetry.Jobs, len(back), telemetry.Pod, s.Opts.Name)
		s.WakeAll()
	}
	if len(cancelled) > 0 {
		ended, err := s.Store.Finish(ctx, podID, cancelled)
		if err != nil {
			return s.DBError(err)
		}
		for id := range ended {
			s.Ends.Report(nil, ends[id])
			s.SubjectFreed(ends[id])
		}
	}
	s.Unknown.checked(began)
	return nil
}

// AddKnown adds the claims that this process is working on, including claims that a statement in flight may assign to it.
func (i *Identity) AddKnown(known map[job.Lease]bool) {
	podID := i.PodID()
	for _, id := range i.inFlight.all() {
		known[job.Lease{JobID: id, Fence: 1, Pod: podID}] = true
	}
	i.ahead.AddKnown(known) // added before Runs, because a claim that is starting is briefly in both
	i.Runs.Each(func(run *Run) { known[run.Lease] = true })
}
