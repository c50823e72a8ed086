package slots

import (
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
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

// Slow reports whether a claim or a submission worked for so long in the server that its lanes are worth a mark.
func Slow(took time.Duration, jobs int) bool { return took > markSlow+time.Duration(jobs)*markSlowEach }

// Marks are low-water marks: a moment in each lane before which no job became ready that could be claimed. Claims and submissions begin to
// read there, past the dead rows of finished jobs, which pile up while an old snapshot is held, and past jobs that cannot be claimed, which a
// [sweep] has read. There are none as long as reading everything is quick. The zero value is ready; safe for concurrent use.
//
// A mark may hide a job that got an older moment after the read: one that was handed back or recovered, or that was submitted by a
// transaction which had been open for a while. So a mark is valid for a while, and then everything is read again. More urgent jobs are never
// hidden: a mark is of all ranks.
type Marks struct {
	mu     sync.Mutex
	lanes  map[string]*mark
	looked time.Time // the last look
}

// mark is that of one lane.
type mark struct {
	since time.Time // zero: there is none
	until time.Time // it counts until then
	used  bool      // since the look at everything
	wake  *time.Timer
	sweep *sweep // of the lane; nil: none is under way
}

// of returns what is known of a lane. Its caller holds the lock.
func (m *Marks) of(lane string) *mark {
	if m.lanes == nil {
		m.lanes = map[string]*mark{}
	}
	one := m.lanes[lane]
	if one == nil {
		one = &mark{}
		m.lanes[lane] = one
	}
	return one
}

// counts reports whether claims begin at the mark.
func (one *mark) counts() bool { return !one.since.IsZero() && !time.Now().After(one.until) }

// ForClaim sets where a claim begins in a lane: at the mark, or at the lane's start when there is none or its time is over. In
// a lane that is swept, it continues the sweep.
func (m *Marks) ForClaim(w *store.Want) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.of(w.Lane)
	if one.sweep.outdated() {
		one.sweep = nil
	}
	switch {
	case one.sweep != nil:
		one.sweep.next(w)
	case one.counts():
		one.used = true
		w.Since = one.since
	}
}

// ForSubmission returns where a submission begins to read the jobs that wait before it. It uses an outdated mark until the next claim has read
// everything: otherwise all concurrent submissions would read it.
func (m *Marks) ForSubmission(lane string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.of(lane)
	one.used = true
	return one.since
}

// Claimed notes how far a claim read, and reports whether a lane that it asked is being swept. After a quick one that looked at
// everything there is no need for marks.
func (m *Marks) Claimed(wants []store.Want, found store.Claims, quick bool, most time.Duration, again func()) (sweeping bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wants {
		one := m.of(w.Lane)
		reached, short := found.Reached[w.Lane]
		switch {
		case one.sweep != nil && one.sweep.continuedBy(w):
			if one.sweep.read(w.Lane, found) {
				m.swept(one, most, again)
			}
		case one.sweep == nil && w.After == nil && short && reached.Last != nil:
			one.sweep = beginSweep(w, found, most)
		case one.sweep == nil && w.After == nil && quick && !one.counts():
			one.since = time.Time{}
		}
		sweeping = sweeping || one.sweep != nil
	}
	return sweeping
}

// Drop removes all marks, and ends all sweeps.
func (m *Marks) Drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.lanes {
		one.since, one.sweep = time.Time{}, nil
	}
}

// swept sets the mark after a sweep that read everything, and moves it after one that began at it.
func (m *Marks) swept(one *mark, most time.Duration, again func()) {
	s := one.sweep
	one.sweep = nil
	if !s.floor.IsZero() {
		if !one.since.IsZero() {
			one.since = s.fresh
		}
		return
	}
	m.set(one, s.fresh, s.passed, most, again)
}

// set sets a mark after a look at everything. One that was quick leaves none; else it counts for a while, at most as long as until the
// next poll, and then again is called if it has been used.
func (m *Marks) set(one *mark, since time.Time, took, most time.Duration, again func()) {
	one.since, one.used = time.Time{}, false
	if one.wake != nil {
		one.wake.Stop()
	}
	if took < markSlow {
		return
	}
	span := markSpan(took, most)
	one.since, one.until = since, time.Now().Add(span)
	one.wake = time.AfterFunc(span, func() {
		m.mu.Lock()
		used := one.used
		if !used {
			one.since = time.Time{}
		}
		m.mu.Unlock()
		if used {
			again()
		}
	})
}

// markSpan is for how long the answer of a look counts.
func markSpan(took, most time.Duration) time.Duration { return min(markTimes*took, most) }

// Look reports whether to ask the database for marks now, and from which moments on.
func (m *Marks) Look(lanes []string) (since map[string]time.Time, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.looked) < markRest {
		return nil, false
	}
	m.looked = now
	since = make(map[string]time.Time, len(lanes))
	for _, lane := range lanes {
		switch one := m.of(lane); {
		case one.sweep != nil: // which ends with a mark
		case one.counts():
			since[lane] = one.since
		default:
			since[lane] = time.Time{}
		}
	}
	return since, len(since) > 0
}

// Apply takes the marks that were found in lanes, read since these moments: zero in lanes that were read as a whole.
func (m *Marks) Apply(found, since map[string]time.Time, took, most time.Duration, again func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := false
	for lane, moment := range found {
		one := m.of(lane)
		if !since[lane].IsZero() {
			one.since = moment
			continue
		}
		whole = true
		m.set(one, moment, took, most, again)
	}
	if whole && took < markSlow {
		m.looked = m.looked.Add(time.Second) // it was something else
	}
}
