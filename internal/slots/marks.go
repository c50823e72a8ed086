package slots

import (
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// markSlow is the server time above which a claim or submission makes the pod read low-water marks, plus markSlowEach per job. With
	// 300,000 dead rows retained by an old snapshot, a claim takes 30 ms.
	markSlow     = 2 * time.Millisecond
	markSlowEach = 50 * time.Microsecond
	// markTimes is the validity period of marks, as a multiple of the duration of the full read that produced them. Full reads thus take up
	// at most a thirtieth of the time. A job hidden by a mark waits no longer than the mark is valid.
	markTimes = 30
	// marginTimes is the margin for submissions in flight, as a multiple of a complete read's duration. maxMargin is its maximum.
	marginTimes = 8
	maxMargin   = 5 * time.Second
	// markFresh is the time after a read during which a claim that starts at the marks cannot miss anything.
	markFresh = 50 * time.Millisecond
	// markRest is the minimum time between two reads of marks.
	markRest = 100 * time.Millisecond
)

// Slow reports whether a claim or submission took enough server time for its lanes to need marks.
func Slow(took time.Duration, jobs int) bool { return took > markSlow+time.Duration(jobs)*markSlowEach }

// Marks holds the low-water marks. A low-water mark is a time before which no claimable job in a rank of a lane became ready. By starting to
// read there, claims and submissions skip the dead rows of finished jobs, which accumulate while an old snapshot is held, and jobs of kinds
// that the pod does not handle. As long as complete reads are fast, there are no marks. The zero value is ready to use. Marks is safe for
// concurrent use.
//
// A mark may hide a job that appears later with an older ready time, because it was handed back, or submitted by a long transaction.
// Marks are therefore valid for a limited time, after which everything is reread. The notification of an admission or a recovery lowers the
// marks of the pods that hear it.
type Marks struct {
	mu     sync.Mutex
	lanes  map[string]*lowWater
	readAt time.Time     // when marks were last read
	took   time.Duration // duration of the latest complete read
}

// lowWater holds one lane's marks.
type lowWater struct {
	marks   []store.Mark
	until   time.Time // end of the marks' validity
	setAt   time.Time
	again   bool // expired marks are being reread, and claims still start at them
	reading bool
	used    bool // a submission or claim has used the marks since they were set, not counting the claim right after the read
	wake    *time.Timer
	late    []store.Mark // jobs that were admitted since the latest read began
}

// of returns a lane's marks, and creates the entry if it does not exist. The caller must hold the lock.
func (m *Marks) of(lane string) *lowWater {
	if m.lanes == nil {
		m.lanes = map[string]*lowWater{}
	}
	low := m.lanes[lane]
	if low == nil {
		low = &lowWater{}
		m.lanes[lane] = low
	}
	return low
}

func (low *lowWater) expired() bool { return low.marks != nil && time.Now().After(low.until) }

// valid reports whether claims may start at the marks.
func (low *lowWater) valid() bool { return low.marks != nil && (low.again || !low.expired()) }

// ForClaim returns the marks from which a claim must read a lane; none means to read everything.
func (m *Marks) ForClaim(lane string) []store.Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	low := m.of(lane)
	if !low.valid() {
		return nil
	}
	low.used = low.used || time.Since(low.setAt) > markFresh
	return low.marks
}

// ForSubmission returns the marks from which a submission must read the lane to find the jobs ahead of it. Expired marks stay in use until the
// lane has been reread, because otherwise every concurrent submission would have to read the whole lane.
func (m *Marks) ForSubmission(lane string) []store.Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	low := m.of(lane)
	low.used = true
	return low.marks
}

// Admitted keeps a lane's marks from hiding a job that was admitted or recovered only now.
func (m *Marks) Admitted(j store.AdmittedJob) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if low := m.of(j.Lane); low.marks != nil || low.reading {
		at := store.Mark{Rank: -j.Priority, Since: j.ReadyAt}
		low.late, low.marks = append(low.late, at), lowered(low.marks, at)
	}
}

// lowered returns a copy of the marks in which none hides a job at the given position.
func lowered(marks []store.Mark, jobs ...store.Mark) []store.Mark {
	marks = slices.Clone(marks)
	for _, at := range jobs {
		for i, mark := range marks {
			if mark.Rank == at.Rank && at.Since.Before(mark.Since) {
				marks[i].Since = at.Since
			}
		}
	}
	return marks
}

// Drop removes all marks.
func (m *Marks) Drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, low := range m.lanes {
		low.marks, low.again = nil, false
	}
}

// Margin returns how far a mark must lie before the time of its read so as not to hide jobs whose submissions are in flight. On a server
// where complete reads take long, submissions may take long too. The store applies a minimum.
func (m *Marks) Margin() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(marginTimes*m.took, maxMargin)
}

// Expired returns the lanes whose marks have expired and that must be reread completely. Until Apply or Failed is called, claims keep starting
// at the expired marks, so that they need not wait for the read.
func (m *Marks) Expired(lanes []string) map[string][]store.Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	read := map[string][]store.Mark{}
	for _, lane := range lanes {
		if low := m.of(lane); low.expired() && !low.again && time.Since(m.readAt) >= markRest {
			read[lane], low.again = nil, true
		}
	}
	return m.begin(read)
}

// AfterSlow returns the lanes that must be read after a slow claim or submission, each with the marks from which to read it: those that are
// valid.
func (m *Marks) AfterSlow(lanes []string) map[string][]store.Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	read := map[string][]store.Mark{}
	for _, lane := range lanes {
		if low := m.of(lane); !low.again && time.Since(m.readAt) >= markRest {
			if read[lane] = nil; low.valid() {
				read[lane] = low.marks
			}
		}
	}
	return m.begin(read)
}

func (m *Marks) begin(lanes map[string][]store.Mark) map[string][]store.Mark {
	for lane := range lanes {
		m.readAt = time.Now()
		low := m.of(lane)
		low.reading, low.late = true, nil
	}
	return lanes
}

// Failed ends a read of marks that failed. Claims then read lanes whose marks have expired from the beginning.
func (m *Marks) Failed(read map[string][]store.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for lane := range read {
		low := m.of(lane)
		low.again, low.reading = false, false
	}
}

// Prune drops the marks of lanes that are no longer valid, after a claim of these lanes that took the server little time.
func (m *Marks) Prune(lanes ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, lane := range lanes {
		if low := m.of(lane); !low.valid() {
			low.marks = nil
		}
	}
}

// Apply applies marks read from the database. read holds the marks from which each lane was read. Marks of a lane that was read completely are valid
// for a multiple of took, up to most; if they have been used by the time they expire, again is called. A read that began at marks only
// advances them.
func (m *Marks) Apply(found, read map[string][]store.Mark, took, most time.Duration, again func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := false
	for lane, marks := range found {
		low := m.of(lane)
		marks, low.reading = lowered(marks, low.late...), false
		if read[lane] != nil {
			low.marks = marks
			continue
		}
		whole, m.took = true, took
		if low.wake != nil {
			low.wake.Stop()
		}
		low.marks, low.setAt, low.used, low.again = nil, time.Now(), false, false
		if took < markSlow || len(marks) == 0 {
			continue
		}
		span := min(markTimes*took, most)
		low.marks, low.until = marks, time.Now().Add(span)
		low.wake = time.AfterFunc(span, func() {
			m.mu.Lock()
			used := low.used
			if !used {
				low.marks = nil
			}
			m.mu.Unlock()
			if used {
				again()
			}
		})
	}
	if whole && took < markSlow {
		m.readAt = m.readAt.Add(time.Second) // the claim was slow for some other reason
	}
}
