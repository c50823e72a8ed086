package runner

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/mutant"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// lanes is this pod's view of the lanes, as the latest heartbeat told it, and the account of its slots.
type lanes struct {
	mu      sync.Mutex
	total   int
	used    int
	known   bool // a heartbeat has told
	paused  bool
	closing bool // the pod stops
	byName  map[string]*lane
	order   []string
	turn    int // where the next share of scarce slots begins
	kinds   map[string]string
}

type lane struct {
	limit *int // of this pod
	slots *int // of all pods together
	open  bool
	used  int
	grant grant // of slots
}

func newLanes(total int) *lanes {
	return &lanes{total: total, byName: map[string]*lane{}, kinds: map[string]string{}}
}

// update takes what a heartbeat told, and reports whether it opened anything.
func (l *lanes) update(b store.Beat) (opened bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	opened = l.paused && !b.Paused
	l.known, l.paused = true, b.Paused
	l.order = l.order[:0]
	seen := map[string]bool{}
	for _, told := range b.Lanes {
		seen[told.Name] = true
		one := l.byName[told.Name]
		if one == nil {
			one = &lane{}
			l.byName[told.Name] = one
		}
		open := told.Enabled && !told.Drained
		opened = opened || open && !one.open || more(one.limit, told.SlotsPerPod) || more(one.slots, told.Slots)
		one.open, one.limit, one.slots = open, told.SlotsPerPod, told.Slots
		opened = one.told(told.Wanted, told.Over, told.Free) || opened
		l.order = append(l.order, told.Name)
	}
	for name, one := range l.byName {
		if !seen[name] {
			one.open = false
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

func more(before, after *int) bool {
	return before != nil && (after == nil || *after > *before)
}

// free is how many more jobs of a lane may start here.
func (l *lanes) free(one *lane) int {
	if l.paused || one == nil || !one.open {
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
	if l.free(one) == 0 && !(mutant.Is(mutant.SlotsExceeded) && one != nil && one.open) {
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
	if l.paused || one == nil || !one.open {
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

// want reserves every free slot for a claim, shared fairly among the lanes; what the claim does not fill is released.
func (l *lanes) want() []store.Want {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.total - l.used
	if left <= 0 || l.paused || len(l.order) == 0 {
		return nil
	}
	wants := make([]store.Want, 0, len(l.order))
	room := make([]int, len(l.order))
	open := 0
	for i, name := range l.order {
		if room[i] = l.free(l.byName[name]); room[i] > 0 {
			open++
		}
	}
	share := make([]int, len(l.order))
	for open > 0 && left > 0 {
		each := max(left/open, 1)
		for k := range l.order {
			i := (l.turn + k) % len(l.order)
			take := min(each, room[i]-share[i], left)
			if take <= 0 {
				continue
			}
			share[i] += take
			left -= take
			if share[i] == room[i] {
				open--
			}
		}
	}
	l.turn++
	for i, name := range l.order {
		if share[i] > 0 {
			wants = append(wants, store.Want{Lane: name, N: share[i]})
			l.byName[name].used += share[i]
			l.used += share[i]
		}
	}
	return wants
}

// covers reports whether a claim of wants asked for every open lane: behind one that was full, others may wait. One of whose
// slots we hold none does not count: no slot that becomes free here is any of them.
func (l *lanes) covers(wants []store.Want) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := 0
	for _, name := range l.order {
		if one := l.byName[name]; one.open && (one.limit == nil || *one.limit > 0) && (one.slots == nil || one.grant.held > 0) {
			open++
		}
	}
	return len(wants) >= open
}

// anyFree reports whether a slot is free once the given reservations are released.
func (l *lanes) anyFree(reserved map[string]int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	back := 0
	for _, n := range reserved {
		back += n
	}
	return l.total-l.used+back > 0
}

// names are all lanes, as the latest heartbeat told.
func (l *lanes) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.order)
}

// openLanes names the lanes that could start a job here.
func (l *lanes) openLanes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, name := range l.order {
		if l.free(l.byName[name]) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// observe sets the slots of each lane that are used here, and their limit here.
func (l *lanes) observe(slots *prometheus.GaugeVec) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slots.Reset()
	for name, one := range l.byName {
		limit := l.total
		if one.limit != nil {
			limit = min(limit, *one.limit)
		}
		if one.slots != nil {
			limit = min(limit, *one.slots)
		}
		slots.WithLabelValues(name, "used").Set(float64(one.used))
		slots.WithLabelValues(name, "limit").Set(float64(limit))
	}
}

// laneFor finds the lane of a submission, and checks the lanes that its later steps name.
func (r *Runner) laneFor(ctx context.Context, w *submission) (string, error) {
	for _, s := range w.planned {
		if s.Lane == "" {
			continue
		}
		if _, err := r.laneOf(ctx, s.Kind, s.Lane); err != nil {
			return "", err
		}
	}
	return r.laneOf(ctx, w.kind, w.lane)
}

// laneOf finds the lane of a submission: the one named, which must exist, or its kind's.
func (r *Runner) laneOf(ctx context.Context, kind, named string) (string, error) {
	if lane, known, exists := r.lanes.lookup(kind, named); known {
		if !exists {
			return "", fmt.Errorf("submit %s to lane %q: %w", kind, named, job.ErrUnknownLane)
		}
		return lane, nil
	}
	lane, exists, err := r.front.LaneFor(ctx, kind, named, job.DefaultLane)
	if err != nil {
		return "", r.dbError(err)
	}
	if !exists {
		return "", fmt.Errorf("submit %s to lane %q: %w", kind, named, job.ErrUnknownLane)
	}
	if named != "" {
		lane = named
	}
	return lane, nil
}

// lookup answers from the latest heartbeat. A lane that it did not know yet is not known to be missing.
func (l *lanes) lookup(kind, named string) (lane string, known, exists bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.known:
		return "", false, false
	case named != "":
		return named, l.byName[named] != nil, true
	case l.kinds[kind] != "":
		return l.kinds[kind], true, true
	}
	return job.DefaultLane, true, true
}

// laneOfStep finds the lane of a next step: the one named, its kind's, or its parent's.
func (l *lanes) laneOfStep(kind, named, parents string) string {
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
