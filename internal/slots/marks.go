package slots

import (
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// markSlow is the server time above which a claim or submission makes the pod read low-water marks, plus markSlowEach per job. With
	// 300,000 dead rows retained by an old snapshot, a claim takes 30 ms.
	markSlow     = 2 * time.Millisecond
	markSlowEach = 50 * time.Microsecond
	// markTimes is the validity period of a mark, as a multiple of the duration of the full read that produced it. Full reads thus take up
	// at most a thirtieth of the time. A job hidden by a mark waits no longer than the mark is valid.
	markTimes = 30
	// marginTimes is the margin for submissions in flight, as a multiple of a complete read's duration. maxMargin is its maximum.
	marginTimes = 8
	maxMargin   = 5 * time.Second
	// markFresh is the time after a read during which a claim that starts at the mark cannot miss anything.
	markFresh = 50 * time.Millisecond
	// markRest is the minimum time between two reads of marks.
	markRest = 100 * time.Millisecond
)

// Slow reports whether a claim or submission took enough server time for its lanes to need marks.
func Slow(took time.Duration, jobs int) bool { return took > markSlow+time.Duration(jobs)*markSlowEach }

// Marks holds the low-water marks. A low-water mark is a time before which none of a lane's claimable jobs became ready. By starting to
// read there, claims and submissions skip the dead rows of finished jobs, which accumulate while an old snapshot is held, and unclaimable
// jobs that a [sweep] has already read. As long as complete reads are fast, there are no marks. The zero value is ready to use. Marks is
// safe for concurrent use.
//
// A mark may hide a job that appears later with an older ready time, because it was handed back, recovered, or submitted by a long
// transaction. Marks are therefore valid for a limited time, after which everything is reread. A mark applies to all ranks, so it does not
// hide newly ready jobs of higher urgency.
type Marks struct {
	mu     sync.Mutex
	lanes  map[string]*mark
	readAt time.Time     // when marks were last read
	took   time.Duration // duration of the latest complete read
}

// mark is one lane's mark.
type mark struct {
	since time.Time // zero if there is no mark
	until time.Time // end of the mark's validity
	setAt time.Time // when the mark was set
	asked time.Time // when the latest complete read for this mark began
	again bool      // an expired mark is being reread, and claims still start at it
	used  bool      // a submission or claim has used the mark since it was set, not counting the claim right after the read
	wake  *time.Timer
	sweep *sweep // sweep of the lane, or nil if none is in progress
}

// markOf returns a lane's mark, and creates it if it does not exist. The caller must hold the lock.
func (m *Marks) markOf(lane string) *mark {
	if m.lanes == nil {
		m.lanes = map[string]*mark{}
	}
	low := m.lanes[lane]
	if low == nil {
		low = &mark{}
		m.lanes[lane] = low
	}
	return low
}

// valid reports whether claims may start at the mark.
func (low *mark) valid() bool { return !low.since.IsZero() && (low.again || !low.expired()) }

func (low *mark) expired() bool { return !low.since.IsZero() && time.Now().After(low.until) }

// ForClaim sets where a claim starts reading a lane: at the mark if it is valid, or else at the beginning of the lane. If a sweep of the
// lane is in progress, the claim continues the sweep.
func (m *Marks) ForClaim(w *store.Want) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mark := m.markOf(w.Lane)
	if mark.sweep.outdated() {
		mark.sweep = nil
	}
	switch {
	case mark.sweep != nil:
		mark.sweep.next(w)
	case mark.valid():
		mark.used = mark.used || time.Since(mark.setAt) > markFresh
		w.Since = mark.since
	}
}

// ForSubmission returns the time from which a submission must read the lane to find the jobs ahead of it. An expired mark stays in use
// until the lane has been reread, because otherwise every concurrent submission would have to read the whole lane.
func (m *Marks) ForSubmission(lane string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	mark := m.markOf(lane)
	mark.used = true
	return mark.since
}

// Claimed records how far a claim has read, and reports whether a sweep of any of its lanes is in progress. After a claim that took the
// server little time (quick), it drops the marks that are no longer valid. The most argument is the longest time for which a mark may be
// valid, and again is called when a used mark expires.
func (m *Marks) Claimed(wants []store.Want, found store.Claims, quick bool, most time.Duration, again func()) (sweeping bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wants {
		mark := m.markOf(w.Lane)
		reached, short := found.Reached[w.Lane]
		switch {
		case mark.sweep != nil && mark.sweep.continuedBy(w):
			if mark.sweep.read(w.Lane, found) {
				m.sweepEnded(mark, most, again)
			}
		case mark.sweep == nil && w.After == nil && short && reached.Last != nil:
			mark.sweep = beginSweep(w, found, most)
		case mark.sweep == nil && w.After == nil && quick && !mark.valid():
			mark.since = time.Time{}
		}
		sweeping = sweeping || mark.sweep != nil
	}
	return sweeping
}

// Drop removes all marks and stops all sweeps.
func (m *Marks) Drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mark := range m.lanes {
		mark.since, mark.sweep, mark.again = time.Time{}, nil, false
	}
}

// sweepEnded sets the mark after a sweep of a whole lane. After a sweep that started at a mark, it advances that mark instead.
func (m *Marks) sweepEnded(low *mark, most time.Duration, again func()) {
	s := low.sweep
	low.sweep = nil
	if !s.floor.IsZero() {
		if !low.since.IsZero() {
			low.since = s.fresh
		}
		return
	}
	m.set(low, s.fresh, s.passed, most, again)
}

// set sets a mark after a full read, or clears it if the read was fast. The mark is valid for a multiple of took, up to most. If the mark
// has been used by the time it expires, again is called.
func (m *Marks) set(low *mark, since time.Time, took, most time.Duration, again func()) {
	low.since, low.setAt, low.used, low.again = time.Time{}, time.Now(), false, false
	if low.wake != nil {
		low.wake.Stop()
	}
	if took < markSlow {
		return
	}
	span := markSpan(took, most)
	low.since, low.until = since, time.Now().Add(span)
	low.wake = time.AfterFunc(span, func() {
		m.mu.Lock()
		used := low.used
		if !used {
			low.since = time.Time{}
		}
		m.mu.Unlock()
		if used {
			again()
		}
	})
}

// markSpan returns how long a mark is valid after a read that took the given time.
func markSpan(took, most time.Duration) time.Duration { return min(markTimes*took, most) }

// Margin returns how far a mark must lie before the time of its read so as not to hide jobs whose submissions are in flight. On a server
// where complete reads take long, submissions may take long too. The store applies a minimum.
func (m *Marks) Margin() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(marginTimes*m.took, maxMargin)
}

// Expired returns the lanes whose marks have expired and which must be reread from the beginning. Until Apply or Failed is called, claims
// keep starting at the expired marks, so that they need not wait for the read.
func (m *Marks) Expired(lanes []string) map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	since := map[string]time.Time{}
	for _, lane := range lanes {
		mark := m.markOf(lane)
		if mark.sweep == nil && mark.expired() && !mark.again && now.Sub(mark.asked) >= markRest {
			since[lane], mark.asked, mark.again = time.Time{}, now, true
		}
	}
	if len(since) > 0 {
		m.readAt = now
	}
	return since
}

// Failed ends a read of marks that failed. Claims then read lanes whose marks have expired from the beginning.
func (m *Marks) Failed(since map[string]time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for lane := range since {
		m.markOf(lane).again = false
	}
}

// AfterSlow returns the lanes whose marks must be read after a slow claim or submission, each with the time from which to read it: its
// mark, or zero if it has no valid mark.
func (m *Marks) AfterSlow(lanes []string) map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.readAt) < markRest {
		return nil
	}
	since := make(map[string]time.Time, len(lanes))
	for _, lane := range lanes {
		switch mark := m.markOf(lane); {
		case mark.sweep != nil || mark.again: // the sweep or the read in progress sets the mark when it ends
		case !mark.valid():
			since[lane], mark.asked = time.Time{}, now
		default:
			since[lane] = mark.since
		}
	}
	if len(since) > 0 {
		m.readAt = now
	}
	return since
}

// Apply applies marks read from the database. The since argument holds the time from which each lane was read, or zero if it was read
// completely.
func (m *Marks) Apply(found, since map[string]time.Time, took, most time.Duration, again func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := false
	for lane, moment := range found {
		mark := m.markOf(lane)
		if !since[lane].IsZero() {
			mark.since = moment
			continue
		}
		whole, m.took = true, took
		m.set(mark, moment, took, most, again)
	}
	if whole && took < markSlow {
		m.readAt = m.readAt.Add(time.Second) // the claim was slow for some other reason
	}
}
