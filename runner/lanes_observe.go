package runner

import "github.com/prometheus/client_golang/prometheus"

// laneUse is how many slots of a lane are used, and how many may be.
type laneUse struct{ used, limit int }

// observe sets the slots of each lane that are used here, and their limit here: in this pod and in the remote workers that it serves.
func (r *Runner) observe(slots *prometheus.GaugeVec) {
	sum := map[string]laneUse{}
	r.lanes.addUse(sum)
	r.guests.each(func(g *Guest) { g.r.lanes.addUse(sum) })
	most := r.lanes.mostSlots()
	slots.Reset()
	for name, use := range sum {
		if all, bounded := most[name]; bounded {
			use.limit = min(use.limit, all)
		}
		slots.WithLabelValues(name, "used").Set(float64(use.used))
		slots.WithLabelValues(name, "limit").Set(float64(use.limit))
	}
}

// addUse adds what these lanes use, and may use, to a sum.
func (l *lanes) addUse(sum map[string]laneUse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, one := range l.byName {
		limit := l.total
		if one.limit != nil {
			limit = min(limit, *one.limit)
		}
		if l.mayUse != nil && !l.mayUse(name) {
			limit = 0
		}
		sum[name] = laneUse{sum[name].used + one.used, sum[name].limit + limit}
	}
}

// mostSlots are the slots of each lane that all pods share, of those lanes that have a limit.
func (l *lanes) mostSlots() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := map[string]int{}
	for name, one := range l.byName {
		if one.slots != nil {
			most[name] = *one.slots
		}
	}
	return most
}
