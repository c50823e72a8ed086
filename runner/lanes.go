package runner

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// lanes is this pod's view of the lanes, as the latest heartbeat told it, and the account of its slots.
type lanes struct {
	mu      sync.Mutex
	total   int
	used    int
	known   bool // a heartbeat has told
	paused  bool // the gate is closed
	drained bool // this pod is, by an operator
	closing bool // the pod stops
	byName  map[string]*lane
	order   []string
	turn    int // where the next share of scarce slots begins
	kinds   map[string]string
	lost    time.Time                                // when a lane was last found deleted, or one that was still had jobs here
	poll    time.Duration                            // how often lanes are looked at that say nothing
	mayUse  func(name string) bool                   // nil: all
	stale   atomic.Pointer[map[string]time.Duration] // of the lanes that say something; nil: none does
}

type lane struct {
	limit *int // of this pod
	slots *int // of all pods together
	open  bool
	used  int
	grant grant // of slots

	every  time.Duration // how often it is looked at; 0: as the pod says
	looked time.Time     // the latest look
}

func newLanes(total int, poll time.Duration) *lanes {
	return &lanes{total: total, poll: poll, byName: map[string]*lane{}, kinds: map[string]string{}}
}

// update takes what a heartbeat told, and reports whether it opened anything.
func (l *lanes) update(b store.Beat) (opened bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	opened = l.shut() && !b.Paused && !b.Drained
	l.known, l.paused, l.drained = true, b.Paused, b.Drained
	l.order = l.order[:0]
	seen := map[string]bool{}
	for _, told := range b.Lanes {
		seen[told.Name] = true
		one := l.byName[told.Name]
		if one == nil {
			one = &lane{}
			l.byName[told.Name] = one
		}
		open := told.Enabled && !told.Drained && (l.mayUse == nil || l.mayUse(told.Name))
		opened = opened || open && !one.open || more(one.limit, told.SlotsPerPod) || more(one.slots, told.Slots)
		one.open, one.limit, one.slots, one.every = open, told.SlotsPerPod, told.Slots, lengthOf(told.PollIntervalMS, time.Millisecond)
		opened = one.told(told) || opened
		l.order = append(l.order, told.Name)
	}
	for name, one := range l.byName {
		if !seen[name] {
			one.open, l.lost = false, time.Now()
			if one.used == 0 {
				delete(l.byName, name)
			}
		}
	}
	clear(l.kinds)
	for _, k := range b.LaneKinds {
		l.kinds[k.Kind] = k.Lane
	}
	return opened
}

// isDrained reports whether an operator has drained this pod.
func (l *lanes) isDrained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drained
}

// shut reports whether nothing may start here, whatever its lane.
func (l *lanes) shut() bool { return l.paused || l.drained }

func more(before, after *int) bool {
	return before != nil && (after == nil || *after > *before)
}

// free is how many more jobs of a lane may start here.
func (l *lanes) free(one *lane) int {
	if l.shut() || one == nil || !one.open {
		return 0
	}
	free := l.total - l.used
	return max(min(free, one.room()), 0)
}

// room is how many more jobs the lane's own limits let start here.
func (one *lane) room() int {
	room := math.MaxInt
	if one.limit != nil {
		room = *one.limit - one.used
	}
	if one.slots != nil {
		room = min(room, one.grant.usable(time.Now())-one.used)
	}
	return room
}

// reserve takes a slot of a lane, if one is free and the lane and the gate are open.
func (l *lanes) reserve(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byName[name]
	if l.free(one) == 0 {
		return false
	}
	one.take(1)
	l.used++
	return true
}

// take counts jobs that start.
func (one *lane) take(n int) {
	one.used += n
	one.grant.touched = true
}

// release gives a slot back.
func (l *lanes) release(name string) { l.releaseN(name, 1) }

func (l *lanes) releaseN(name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= n
	if one := l.byName[name]; one != nil {
		one.used -= n
	}
}

// step prepares a hand-off: the pod's slot stays, and the lane of the next step gives one if it is another lane. It
// reports whether the next step may start here. Undo it with unstep, or complete it by releasing the lane of the parent
// with stepped.
func (l *lanes) step(from, to string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byName[to]
	if l.shut() || one == nil || !one.open {
		return false
	}
	if from == to {
		one.grant.touched = true
		return one.room() >= 0 // its parent's slot is its own
	}
	if one.room() <= 0 {
		return false
	}
	one.take(1)
	return true
}

// stepped ends a hand-off from one lane to another: the step that did not come to run gives its lane back.
func (l *lanes) stepped(from, to string, running bool) {
	if from == to {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	back := to
	if running {
		back = from
	}
	if one := l.byName[back]; one != nil {
		one.used--
	}
}

// names are all lanes, as the latest heartbeat told.
func (l *lanes) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.order)
}
