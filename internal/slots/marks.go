package slots

import (
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// markSlow is the server time of a claim or a submission above which the pod reads low-water marks; markSlowEach is added for each job
	// of it. Over 300,000 dead rows that an old snapshot keeps, a claim takes 30 ms.
	markSlow     = 2 * time.Millisecond
	markSlowEach = 50 * time.Microsecond
	// markTimes is how long a mark is valid, as a multiple of the time that the full read for it took. Full reads therefore take at most a
	// thirtieth of the time, and jobs that a mark hides wait no longer than its validity.
	markTimes = 30
	// markRest is the minimum time between two reads of marks.
	markRest = 100 * time.Millisecond
)

// Slow reports whether a claim or a submission took so long in the server that its lanes need marks.
func Slow(took time.Duration, jobs int) bool { return took > markSlow+time.Duration(jobs)*markSlowEach }

// Marks are low-water marks: a time in each lane before which no claimable job became ready. Claims and submissions begin to read there.
// They skip the dead rows of finished jobs, which pile up while an old snapshot is held, and jobs that cannot be claimed, which a [sweep]
// has read. There are no marks while reading everything is quick. The zero value is ready; safe for concurrent use.
//
// A mark may hide a job that got an older ready time after the read: one that was handed back or recovered, or that was submitted by a long
// transaction. A mark is therefore valid for a limited time, after which everything is read again. It never hides more urgent jobs, because
// it covers all ranks.
type Marks struct {
	mu     sync.Mutex
	lanes  map[string]*mark
	looked time.Time // when marks were last read
}

// mark is the mark of one lane.
type mark struct {
	since time.Time // zero: there is none
	until time.Time // the end of its validity
	used  bool      // since the last full read
	wake  *time.Timer
	sweep *sweep // of the lane; nil: none is in progress
}

// markOf returns the mark of a lane, and adds it if it is missing. The caller holds the lock.
func (m *Marks) markOf(lane string) *mark {
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

// valid reports whether the mark is valid, so that claims begin at it.
func (one *mark) valid() bool { return !one.since.IsZero() && !time.Now().After(one.until) }

// ForClaim sets where a claim begins in a lane: at the mark, or at the lane's start without a valid mark. In a lane that is swept, it
// continues the sweep.
func (m *Marks) ForClaim(w *store.Want) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.markOf(w.Lane)
	if one.sweep.outdated() {
		one.sweep = nil
	}
	switch {
	case one.sweep != nil:
		one.sweep.next(w)
	case one.valid():
		one.used = true
		w.Since = one.since
	}
}

// ForSubmission returns where a submission begins to read the jobs that wait before it. It uses an expired mark until the next claim has
// read everything. Otherwise all concurrent submissions would read everything.
func (m *Marks) ForSubmission(lane string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.markOf(lane)
	one.used = true
	return one.since
}

// Claimed records how far a claim read, and reports whether any of its lanes is being swept. After a quick claim that read everything,
// marks are not needed.
func (m *Marks) Claimed(wants []store.Want, found store.Claims, quick bool, most time.Duration, again func()) (sweeping bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wants {
		one := m.markOf(w.Lane)
		reached, short := found.Reached[w.Lane]
		switch {
		case one.sweep != nil && one.sweep.continuedBy(w):
			if one.sweep.read(w.Lane, found) {
				m.sweepEnded(one, most, again)
			}
		case one.sweep == nil && w.After == nil && short && reached.Last != nil:
			one.sweep = beginSweep(w, found, most)
		case one.sweep == nil && w.After == nil && quick && !one.valid():
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

// sweepEnded sets the mark after a sweep that read everything, and moves it after a sweep that began at it.
func (m *Marks) sweepEnded(one *mark, most time.Duration, again func()) {
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

// set sets a mark after a full read. A quick read leaves no mark. Otherwise the mark is valid for a time, at most until the next poll; then
// again is called if the mark has been used.
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

// markSpan returns how long a mark is valid.
func markSpan(took, most time.Duration) time.Duration { return min(markTimes*took, most) }

// Look reports whether to read marks from the database now, and from which times on.
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
		switch one := m.markOf(lane); {
		case one.sweep != nil: // it ends with a mark
		case one.valid():
			since[lane] = one.since
		default:
			since[lane] = time.Time{}
		}
	}
	return since, len(since) > 0
}

// Apply applies the marks that were read in lanes, beginning at the times in since: zero for lanes that were read completely.
func (m *Marks) Apply(found, since map[string]time.Time, took, most time.Duration, again func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := false
	for lane, moment := range found {
		one := m.markOf(lane)
		if !since[lane].IsZero() {
			one.since = moment
			continue
		}
		whole = true
		m.set(one, moment, took, most, again)
	}
	if whole && took < markSlow {
		m.looked = m.looked.Add(time.Second) // something else made the claim slow
	}
}
