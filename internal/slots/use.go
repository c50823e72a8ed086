package slots

// Use holds a lane's number of used slots and its limit.
type Use struct{ Used, Limit int }

// AddUse adds the used slots and the limit of each lane to sum, which is keyed by lane.
func (l *Lanes) AddUse(sum map[string]Use) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, lane := range l.byName {
		limit := l.total
		if lane.limit != nil {
			limit = min(limit, *lane.limit)
		}
		if l.mayUse != nil && !l.mayUse(name) {
			limit = 0
		}
		sum[name] = Use{sum[name].Used + lane.used, sum[name].Limit + limit}
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

// Shared returns, by lane, the limits across all pods for the lanes that have one.
func (l *Lanes) Shared() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := map[string]int{}
	for name, lane := range l.byName {
		if lane.slots != nil {
			most[name] = *lane.slots
		}
	}
	return most
}
