package slots

import (
	"cmp"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// Wants reserves the free slots for a claim, and shares them fairly among the lanes that no claim has included since the given time. The
// caller must release the slots that the claim does not fill. The unasked result is the number of lanes for which no slot was left.
func (l *Lanes) Wants(since time.Time) (wants []store.Want, unasked int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.total - l.used
	if left <= 0 || l.stopped() || len(l.order) == 0 {
		return nil, 0
	}
	now := time.Now()
	wants = make([]store.Want, 0, len(l.order))
	room := make([]int, len(l.order))
	open := 0
	for i, name := range l.order {
		lane := l.byName[name]
		if lane.claimedAt.Before(since) { // not yet included in this round
			room[i] = l.free(lane)
		}
		if room[i] > 0 {
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
			l.byName[name].claimedAt = now
			unasked--
			l.used += share[i]
		}
	}
	return wants, unasked
}

// Covers reports whether claims that included the given number of lanes have included every open lane. Limited lanes in which this pod
// holds no slots do not count, because no slot that becomes free on this pod belongs to them. But if the latest search found more of them
// with jobs than the pod had free slots, Covers reports false.
func (l *Lanes) Covers(asked int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found > l.freeAtSearch {
		return false
	}
	open := 0
	for _, name := range l.order {
		if lane := l.byName[name]; lane.open && (lane.limit == nil || *lane.limit > 0) && (lane.slots == nil || lane.grant.held > 0) {
			open++
		}
	}
	return asked >= open
}

// Use holds a lane's number of used slots and its limit.
type Use struct{ Used, Limit int }

// AddUse adds the used slots and the limit of each lane to sum, which is keyed by [Lanes.CountedAs].
func (l *Lanes) AddUse(sum map[string]Use) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := map[string]Use{}
	for name, lane := range l.byName {
		limit := l.total
		if lane.limit != nil {
			limit = min(limit, *lane.limit)
		}
		if l.mayUse != nil && !l.mayUse(name) {
			limit = 0
		}
		as := cmp.Or(lane.template, name)
		own[as] = Use{own[as].Used + lane.used, min(own[as].Limit+limit, l.total)}
	}
	for as, use := range own {
		sum[as] = Use{sum[as].Used + use.Used, sum[as].Limit + use.Limit}
	}
}

// HoldsOrAwaits reports whether this pod holds or awaits slots of a lane that has a limit across all pods.
func (l *Lanes) HoldsOrAwaits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.byName {
		if lane.grant.state != idle {
			return true
		}
	}
	return false
}

// Shared returns, by [Lanes.CountedAs], the limits across all pods for the lanes that have one.
func (l *Lanes) Shared() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := map[string]int{}
	for name, lane := range l.byName {
		if lane.slots != nil {
			most[cmp.Or(lane.template, name)] += *lane.slots
		}
	}
	return most
}
