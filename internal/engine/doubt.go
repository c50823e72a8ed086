package engine

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// doubtFor is for how long after a lost reply, or a failed heartbeat, the table is searched for jobs that are ours without our knowing. A
// statement whose reply was lost may still be committed after a first look: by a server that was frozen, say.
const doubtFor = 2 * time.Minute

// doubts remember that a reply was lost, or that a heartbeat failed. Looks are due at once, then whenever the time since then has doubled.
type doubts struct {
	mu     sync.Mutex
	raised time.Time // zero: none
	looked time.Time
}

func (d *doubts) Raise() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raised, d.looked = time.Now(), time.Time{}
}

func (d *doubts) Due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.raised.IsZero():
		return false
	case d.looked.IsZero():
		return true
	}
	return time.Since(d.looked) > d.looked.Sub(d.raised)+time.Second
}

// lookedAt notes a look that began at a moment; the doubt ends with the first look after doubtFor.
func (d *doubts) lookedAt(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case began.Before(d.raised): // a new doubt since
	case began.Sub(d.raised) > doubtFor:
		d.raised = time.Time{}
	default:
		d.looked = began
	}
}

// handBackStrays gives back what the table says is ours and this process does not know, after a reply was lost. First the
// table is read, then what is known here, so that a job which starts meanwhile is not taken for a stray: jobs are known
// from before the statement that makes them ours is sent, except those of a claim, and claims and this take turns in the
// poller's goroutine.
func (r *Engine) handBackStrays(ctx context.Context) error {
	if !r.Doubt.Due() {
		return nil
	}
	began, boot := time.Now(), r.Boot()
	held, ok, err := r.Member.Claims(ctx, boot)
	if err != nil || !ok {
		return r.DBError(err)
	}
	known := map[job.Lease]bool{}
	r.AddKnown(known)
	var strays []job.Lease
	var cancelled []store.Ending
	for _, h := range held {
		lease := job.Lease{JobID: h.ID, Fence: h.Fence, Pod: boot}
		switch {
		case known[lease]:
		case h.CancelRequested:
			cancelled = append(cancelled, store.Ending{ID: h.ID, Fence: h.Fence, State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled,
				Branch: h.Branch})
		default:
			strays = append(strays, lease)
		}
	}
	if len(strays) > 0 {
		back, err := r.Store.HandBack(ctx, boot, strays, "its pod does not know of it: a reply or an end was lost")
		if err != nil {
			return r.DBError(err)
		}
		r.Log.WarnContext(ctx, "jobs handed back that the table gives to this pod, which does not know of them: a reply or an end was lost", telemetry.Jobs, len(back), telemetry.Pod, r.Opts.Name)
		r.Wake()
		r.WakePeers()
	}
	if len(cancelled) > 0 {
		if _, err := r.Store.Finish(ctx, boot, cancelled); err != nil {
			return r.DBError(err)
		}
	}
	r.Doubt.lookedAt(began)
	return nil
}
