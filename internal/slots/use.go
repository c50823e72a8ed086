package slots

// Use holds a lane's number of used slots and its limit.
type Use struct{ Used, Limit int }

// AddUse adds the used slots and the limit of each lane to sum, which is keyed by lane.
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

// HoldsOrAwaits reports whether this pod holds or awaits slots of a lane that has a limit across all pods.
func (l *Lanes) HoldsOrAwaits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.byName {
		if one.grant.held > 0 || one.grant.waits {
			return true
		}
	}
	return false
}

// Shared returns, by lane, the limits across all pods for the lanes that have one.
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
