package engine

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// unknownFor is for how long after a lost reply, or a failed heartbeat, the table is searched for jobs that are ours without our knowing. A
// statement whose reply was lost may still be committed after a first check, as by a server that was frozen.
const unknownFor = 2 * time.Minute

// unknownOutcomes remember that a reply was lost, or that a heartbeat failed. Checks are due at once, then each time the time since then has doubled.
type unknownOutcomes struct {
	mu     sync.Mutex
	raised time.Time // zero: none
	last   time.Time
}

func (d *unknownOutcomes) Raise() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raised, d.last = time.Now(), time.Time{}
}

func (d *unknownOutcomes) Due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.raised.IsZero():
		return false
	case d.last.IsZero():
		return true
	}
	return time.Since(d.last) > d.last.Sub(d.raised)+time.Second
}

// checked notes a check that began at a moment; the last one is the first after unknownFor.
func (d *unknownOutcomes) checked(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case began.Before(d.raised): // another one since
	case began.Sub(d.raised) > unknownFor:
		d.raised = time.Time{}
	default:
		d.last = began
	}
}

// handBackOrphans gives back what the table says is ours and this process does not know, after a reply was lost. First the
// table is read, then what is known here, so that a job which starts meanwhile is not taken for an orphan: jobs are known
// from before the statement that makes them ours is sent, except those of a claim, and claims and this take turns in the
// poller's goroutine.
func (s *sweeper) handBackOrphans(ctx context.Context) error {
	if !s.Unknown.Due() {
		return nil
	}
	began, boot := time.Now(), s.Boot()
	held, ok, err := s.Member.Claims(ctx, boot)
	if err != nil || !ok {
		return s.DBError(err)
	}
	known := map[job.Lease]bool{}
	s.AddKnown(known)
	var orphans []job.Lease
	var cancelled []store.Ending
	for _, h := range held {
		lease := job.Lease{JobID: h.ID, Fence: h.Fence, Pod: boot}
		switch {
		case known[lease]:
		case h.CancelRequested:
			cancelled = append(cancelled, store.Ending{ID: h.ID, Fence: h.Fence, State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled,
				Branch: h.Branch})
		default:
			orphans = append(orphans, lease)
		}
	}
	if len(orphans) > 0 {
		back, err := s.Store.HandBack(ctx, boot, orphans, "its pod does not know of it: a reply or an end was lost")
		if err != nil {
			return s.DBError(err)
		}
		s.Log.WarnContext(ctx, "jobs handed back that the table gives to this pod, which does not know of them: a reply or an end was lost", telemetry.Jobs, len(back), telemetry.Pod, s.Opts.Name)
		s.Wake()
		s.WakePeers()
	}
	if len(cancelled) > 0 {
		if _, err := s.Store.Finish(ctx, boot, cancelled); err != nil {
			return s.DBError(err)
		}
	}
	s.Unknown.checked(began)
	return nil
}
