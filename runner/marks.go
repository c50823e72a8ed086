package runner

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

const (
	// markSlow is for how long a claim or a submission may work in the server before we ask what it had to pass by, and
	// markSlowEach what each job of it may add. Over 300,000 rows that a held snapshot keeps, a claim takes 30 ms.
	markSlow     = 2 * time.Millisecond
	markSlowEach = 50 * time.Microsecond
	// markTimes is for how many times the length of a look at everything its answer counts: looks are then a thirtieth of the
	// time, and what the marks hide waits no longer than that.
	markTimes = 30
	// markRest is the time between two looks.
	markRest = 100 * time.Millisecond
)

// marks are low-water marks: a moment in each lane before which nothing became ready that could be claimed. Claims and
// submissions begin their looks there, past the dead rows of what has ended, which pile up as long as anybody holds an old
// snapshot. There are none as long as a look at everything is quick.
//
// A mark may hide a job that was given an older moment after the look: one that was handed back or recovered, or that was
// submitted by a transaction which had been open for a while. So marks count for a while only, and then everything is
// looked at again. A job that is more urgent than others is never hidden: a mark is of all ranks.
type marks struct {
	mu     sync.Mutex
	since  map[string]time.Time
	until  time.Time // they count until then
	used   bool      // since the look at everything
	looked time.Time // the last look
	wake   *time.Timer
}

// forClaim returns where a claim begins in a lane: at the mark, or at the zero time when there is none or its time is over.
func (m *marks) forClaim(lane string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since == nil || time.Now().After(m.until) {
		return time.Time{}
	}
	m.used = true
	return m.since[lane]
}

// forSubmission returns where a submission begins to look for what waits before it. A mark whose time is over serves it until
// the next claim has looked at everything: else all submissions that come meanwhile would, and hinder each other.
func (m *marks) forSubmission(lane string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used = true
	return m.since[lane]
}

// quick notes that a claim was: after one that looked at everything there is no need for marks.
func (m *marks) quick() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Now().After(m.until) {
		m.since = nil
	}
}

// drop removes all marks.
func (m *marks) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since = nil
}

// look reports whether a look is due, and from which moments on.
func (m *marks) look(lanes []string) (since map[string]time.Time, whole, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.looked) < markRest {
		return nil, false, false
	}
	m.looked = now
	whole = m.since == nil || now.After(m.until)
	since = make(map[string]time.Time, len(lanes))
	for _, lane := range lanes {
		since[lane] = time.Time{}
		if !whole {
			since[lane] = m.since[lane]
		}
	}
	return since, whole, true
}

// told takes what a look found. After a look at everything that was quick there are no marks; else they count for a while,
// at most as long as until the next poll, and then again is called if somebody has used them.
func (m *marks) told(since map[string]time.Time, whole bool, took, poll time.Duration, again func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !whole { // of these lanes: those who share the marks may not have all
		now := maps.Clone(m.since)
		if now == nil {
			now = map[string]time.Time{}
		}
		maps.Copy(now, since)
		m.since = now
		return
	}
	m.since, m.used = nil, false
	if took < markSlow {
		m.looked = m.looked.Add(time.Second) // it was something else
		return
	}
	span := min(markTimes*took, poll)
	m.since, m.until = since, time.Now().Add(span)
	if m.wake != nil {
		m.wake.Stop()
	}
	m.wake = time.AfterFunc(span, func() {
		m.mu.Lock()
		used := m.used
		if !used {
			m.since = nil
		}
		m.mu.Unlock()
		if used {
			again()
		}
	})
}

// mark looks where claims may begin.
func (r *Runner) mark(ctx context.Context) {
	since, whole, due := r.marks.look(r.lanes.names())
	if !due {
		return
	}
	found, took, err := r.store.Marks(ctx, since, r.mineAll)
	if err != nil {
		r.log.DebugContext(ctx, "no marks", telemetry.Err, r.dbError(err)) // claims are slower without
		return
	}
	poll, again := r.marksCount()
	r.marks.told(found, whole, took, poll, again)
}

// marksCount is for how long marks count at most, and who looks at everything after that. Remote workers poll more often than their pod,
// and those of the same kinds share their marks.
func (r *Runner) marksCount() (most time.Duration, again func()) {
	if r.guest == nil {
		return r.opts.PollEvery, r.wake
	}
	host := r.guest.host
	return host.opts.PollEvery, host.guests.wake
}
