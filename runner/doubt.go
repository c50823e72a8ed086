package runner

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// doubtFor is for how long after a lost reply the table is looked through for jobs that are ours without our knowing. A
// statement whose reply was lost may still be committed after a first look: by a server that was frozen, say.
const doubtFor = 2 * time.Minute

// doubts remember that a reply was lost. Looks are due at once, then whenever the time since then has doubled.
type doubts struct {
	mu     sync.Mutex
	raised time.Time // zero: none
	looked time.Time
}

func (d *doubts) raise() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raised, d.looked = time.Now(), time.Time{}
}

func (d *doubts) due() bool {
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

// handBackStrays gives back what the table says is ours and this process does not know, after a reply was lost. Jobs are
// known from before the statement that makes them ours is sent, except those of a claim: claims and this take turns in
// the poller's goroutine.
func (r *Runner) handBackStrays(ctx context.Context) error {
	if !r.doubt.due() {
		return nil
	}
	began := time.Now()
	known := append(r.flights.list(), r.runs.ids()...)
	back, err := r.store.HandBackStrays(ctx, r.Boot(), known)
	if err != nil {
		return r.dbError(err)
	}
	r.doubt.lookedAt(began)
	if len(back) > 0 {
		r.log.WarnContext(ctx, "jobs handed back whose claim's reply was lost", "jobs", len(back), telemetry.Pod, r.opts.Name)
		r.poller.Wake()
		r.wakePeers()
	}
	return nil
}
