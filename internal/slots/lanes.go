// Package slots decides which jobs a pod or remote worker may start. [Lanes] limits the number of jobs per lane and shares free slots among
// the lanes. Grants enforce limits across all pods, and [Marks] determine where claims start reading a lane.
//
// The package makes decisions but does no I/O. Callers pass in the replies to heartbeats, claims and grant requests, and send the requests
// that the package returns. The tests need no database, except for one that compares the package with the real table of grants. Package
// engine calls this package around each claim, submission and hand-off.
package slots

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Lanes tracks a pod's or remote worker's slots: how many are in use, and how many each lane in the latest heartbeat allows. It is safe for
// concurrent use.
type Lanes struct {
	mu      sync.Mutex
	total   int
	used    int
	known   bool // a heartbeat has been received
	paused  bool // the queue is paused or frozen
	drained bool // an operator has drained this pod
	closing bool // the pod is stopping
	byName  map[string]*lane
	order   []string
	turn    int // lane that comes first the next time scarce slots are shared

	searched     time.Time // when limited lanes were last searched for jobs
	freeAtSearch int       // number of slots that could be requested then
	found        int       // number of lanes with jobs that the search found
	kinds        map[string]string
	lost         time.Time                                // when a heartbeat last lacked a known lane, because the lane was deleted
	mayUse       func(name string) bool                   // all lanes if nil
	stale        atomic.Pointer[map[string]time.Duration] // stale limits by lane, or nil if no lane sets one
}

type lane struct {
	limit *int // for this pod
	slots *int // across all pods
	open  bool
	rated bool      // each start needs a start of the lane's rate, so jobs start only by claims
	held  time.Time // until then, a handler of this pod holds the lane: treated like a rate
	idle  bool      // may be deleted soon
	used  int
	grant grant // granted slots, if slots is set

	template string // from which the lane was made; empty if it was not

	claimedAt time.Time // when a claim last included it
}

// NewLanes returns a Lanes with a total number of slots. If mayUse is not nil, it restricts the lanes that may be used.
func NewLanes(total int, mayUse func(lane string) bool) *Lanes {
	return &Lanes{total: total, mayUse: mayUse, byName: map[string]*lane{}, kinds: map[string]string{}}
}

// Apply applies a heartbeat response. It reports whether the pod must poll because more jobs may start than before, or because a grant must
// be requested, confirmed or returned.
func (l *Lanes) Apply(b store.Beat) (poll bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	poll = l.stopped() && !b.Paused && !b.Drained
	l.known, l.paused, l.drained = true, b.Paused, b.Drained
	l.order = l.order[:0]
	seen := map[string]bool{}
	for _, reported := range b.Lanes {
		seen[reported.Name] = true
		entry := l.byName[reported.Name]
		if entry == nil {
			entry = &lane{}
			l.byName[reported.Name] = entry
		}
		open := reported.Enabled && !reported.Drained && (l.mayUse == nil || l.mayUse(reported.Name))
		poll = poll || open && !entry.open || entry.rated != reported.Rated || more(entry.limit, reported.SlotsPerPod) || more(entry.slots, reported.Slots)
		entry.open, entry.rated, entry.limit, entry.slots = open, reported.Rated, reported.SlotsPerPod, reported.Slots
		entry.template, entry.idle = reported.Template, reported.Idle
		poll = entry.grant.next(event{kind: beaten, beat: reported}, entry.used) || poll
		l.order = append(l.order, reported.Name)
	}
	for name, entry := range l.byName {
		if !seen[name] {
			if entry.open = false; entry.template == "" {
				l.lost = time.Now()
			}
			if entry.used == 0 {
				delete(l.byName, name)
			}
		}
	}
	clear(l.kinds)
	for _, k := range b.LaneKinds {
		l.kinds[k.Kind] = k.Lane
	}
	return poll
}

// Drained reports whether an operator has drained this pod.
func (l *Lanes) Drained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drained
}

// Paused reports whether the queue is paused or frozen, so that no pod may start jobs.
func (l *Lanes) Paused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused
}

// stopped reports whether this pod may not start jobs in any lane.
func (l *Lanes) stopped() bool { return l.paused || l.drained }

func more(before, after *int) bool {
	return before != nil && (after == nil || *after > *before)
}

// free returns how many more jobs may start in a lane on this pod.
func (l *Lanes) free(entry *lane) int {
	if l.stopped() || entry == nil || !entry.open {
		return 0
	}
	free := l.total - l.used
	return max(min(free, entry.room()), 0)
}

// room returns how many more jobs the lane's limits allow on this pod.
func (entry *lane) room() int {
	room := math.MaxInt
	if entry.limit != nil {
		room = *entry.limit - entry.used
	}
	if entry.slots != nil {
		room = min(room, entry.grant.usable(time.Now())-entry.used)
	}
	return room
}

// Reserve takes a slot in a lane, and reports whether it succeeded. It fails if no slot is free, the lane is closed or has a rate, or the queue or
// the pod is stopped.
func (l *Lanes) Reserve(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.byName[name]
	if l.free(lane) == 0 || lane.limited() {
		return false
	}
	lane.used++
	l.used++
	return true
}

// Free reports whether the given numbers of jobs may start in lanes on this pod.
func (l *Lanes) Free(jobs map[string]int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := 0
	for name, n := range jobs {
		if total += n; total > l.total-l.used || l.free(l.byName[name]) < n {
			return false
		}
	}
	return true
}

// AnyFree reports whether this pod has a free slot.
func (l *Lanes) AnyFree() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used < l.total
}

// UnsharedSlots returns how many of a lane's jobs this pod may run concurrently, regardless of the jobs that are running now. It returns 0
// if no jobs may start, or if the lane has a rate or a limit across all pods.
func (l *Lanes) UnsharedSlots(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.byName[name]
	if l.stopped() || l.closing || lane == nil || !lane.open || lane.limited() || lane.slots != nil {
		return 0
	}
	if lane.limit != nil {
		return min(l.total, *lane.limit)
	}
	return l.total
}

// Release returns slots to a lane.
func (l *Lanes) Release(name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= n
	if lane := l.byName[name]; lane != nil {
		lane.used -= n
	}
}

// Step prepares a hand-off, and reports whether the next step may start on this pod. The parent keeps its slot. If the next step has a
// different lane, Step also takes a slot in that lane. If Step returns true, the caller must call Stepped afterwards.
func (l *Lanes) Step(from, to string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.byName[to]
	if l.stopped() || lane == nil || !lane.open || lane.limited() {
		return false
	}
	if from == to {
		return lane.room() >= 0 // the step takes over its parent's slot
	}
	if lane.room() <= 0 {
		return false
	}
	lane.used++
	return true
}

// Stepped completes a hand-off between different lanes. It returns the parent's slot to its lane or, if the next step did not start, the
// step's slot.
func (l *Lanes) Stepped(from, to string, running bool) {
	if from == to {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	back := to
	if running {
		back = from
	}
	if lane := l.byName[back]; lane != nil {
		lane.used--
	}
}

// Hold treats a lane as one with a rate until the time until: a handler of this pod holds it, and the next heartbeat may be late.
func (l *Lanes) Hold(name string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane := l.byName[name]; lane != nil && until.After(lane.held) {
		lane.held = until
	}
}

// limited reports whether each start needs a start of the lane's rate.
func (l *lane) limited() bool { return l.rated || time.Now().Before(l.held) }

// Rated reports whether the lane has a rate, or is held.
func (l *Lanes) Rated(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.byName[name]
	return lane != nil && lane.limited()
}

// Names returns the names of the lanes in the latest heartbeat.
func (l *Lanes) Names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.order)
}

// Lookup returns a submission's lane according to the latest heartbeat: the named lane or, if no lane is named, the kind's lane. Before the
// first heartbeat, and if the heartbeat did not report the named lane or reported it as idle, known is false.
func (l *Lanes) Lookup(kind, named string) (lane string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.known:
		return "", false
	case named != "":
		entry := l.byName[named]
		return named, entry != nil && !entry.idle
	case l.kinds[kind] != "":
		return l.kinds[kind], true
	}
	return job.DefaultLane, true
}

// CountedAs returns the name under which metrics count a lane: its template, if it was made from one. There may be thousands of such lanes.
func (l *Lanes) CountedAs(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane := l.byName[name]; lane != nil && lane.template != "" {
		return lane.template
	}
	return name
}

// LaneOfStep returns a next step's lane: the named lane, its kind's lane, or its parent's lane.
func (l *Lanes) LaneOfStep(kind, named, parents string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case named != "":
		return named
	case l.kinds[kind] != "":
		return l.kinds[kind]
	}
	return parents
}

// LostOne reports whether, within the given time, a heartbeat reported that a lane was deleted, or a deleted lane still had running jobs. Lanes that were
// made from a template do not count: they are deleted all the time.
func (l *Lanes) LostOne(lately time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost.IsZero() && time.Since(l.lost) < lately
}

// ApplyStale applies the lanes' stale limits, and reports whether any has changed.
func (l *Lanes) ApplyStale(reported []store.Lane) (changed bool) {
	now := map[string]time.Duration{}
	for _, lane := range reported {
		if lane.InactivityTimeoutS != nil {
			now[lane.Name] = time.Duration(*lane.InactivityTimeoutS) * time.Second
		}
	}
	before := map[string]time.Duration{}
	if had := l.stale.Load(); had != nil {
		before = *had
	}
	if maps.Equal(before, now) {
		return false
	}
	l.stale.Store(&now)
	return true
}

// InactivityTimeout returns how long a run in the lane may go without a sign of life before it counts as stale. The set result is false if the
// lane sets no limit.
func (l *Lanes) InactivityTimeout(name string) (after time.Duration, set bool) {
	if lanes := l.stale.Load(); lanes != nil {
		after, set = (*lanes)[name]
	}
	return after, set
}

// Adopt counts a job that is already running, regardless of the lane's limits and of whether a heartbeat has reported the lane yet.
func (l *Lanes) Adopt(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used++
	entry := l.byName[name]
	if entry == nil {
		entry = &lane{}
		l.byName[name] = entry
	}
	entry.used++
}

// Resize sets the total number of slots, and reports whether the number has increased.
func (l *Lanes) Resize(total int) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.total
	l.total = total
	return l.total > before
}
