package runner

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/poller"
)

// interval is how often a lane is looked at without any other cause.
func (l *lanes) interval(one *lane) time.Duration {
	if one.every > 0 {
		return one.every
	}
	return l.poll
}

// tick is how often the poller is to look: as often as the most impatient lane wants, and at least as often as the pod does.
func (l *lanes) tick() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	tick := l.poll
	for _, name := range l.order {
		tick = min(tick, l.interval(l.byName[name]))
	}
	return tick
}

// round is one look at all lanes. With fewer free slots than lanes it takes several claims, so that a job in one lane need not wait
// for a poll because others were asked first. Only the poller's goroutine touches it.
type round struct {
	since time.Time
	tick  bool // nothing has happened that calls for a look: lanes whose own interval is not over yet are left out
	open  bool // lanes are left to be asked
	asked int
}

// want reserves every free slot for a claim, shared fairly among the lanes that the round has not asked yet; what the claim does
// not fill is released. It counts the lanes that it left out as too early, and those for which there was no slot left to ask with.
func (l *lanes) want(in round) (wants []store.Want, early, unasked int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.total - l.used
	if left <= 0 || l.shut() || len(l.order) == 0 {
		return nil, 0, 0
	}
	now := time.Now()
	wants = make([]store.Want, 0, len(l.order))
	room := make([]int, len(l.order))
	open := 0
	for i, name := range l.order {
		one := l.byName[name]
		if room[i] = l.free(one); room[i] <= 0 {
			continue
		}
		switch {
		case !one.looked.Before(in.since): // in this round
			room[i] = 0
		case in.tick && now.Sub(one.looked) < time.Duration(float64(l.interval(one))*(1-poller.Spread)):
			room[i] = 0
			early++
		default:
			open++
		}
	}
	unasked = open
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
			l.byName[name].looked = now
			unasked--
			l.used += share[i]
		}
	}
	return wants, early, unasked
}

// covers reports whether a claim that asked for so many lanes asked for every open one: behind one that was full, others may
// wait. One of whose slots we hold none does not count: no slot that becomes free here is any of them.
func (l *lanes) covers(asked int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := 0
	for _, name := range l.order {
		if one := l.byName[name]; one.open && (one.limit == nil || *one.limit > 0) && (one.slots == nil || one.grant.held > 0) {
			open++
		}
	}
	return asked >= open
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
