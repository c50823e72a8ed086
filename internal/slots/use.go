package slots

// Use holds the number of used slots of a lane and the lane's limit.
type Use struct{ Used, Limit int }

// AddUse adds the used slots and limits of these lanes to sum, which is keyed by lane.
func (l *Lanes) AddUse(sum map[string]Use) {
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
		sum[name] = Use{sum[name].Used + one.used, sum[name].Limit + limit}
	}
}

// Total returns the number of slots, or 0 while no jobs may start on this pod.
func (l *Lanes) Total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped() || l.closing {
		return 0
	}
	return l.total
}

// Shared returns the limits of the lanes that have a limit across all pods.
func (l *Lanes) Shared() map[string]int {
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
