package runner

// adopt counts a job that runs already, whatever its lane's limits say now.
func (l *lanes) adopt(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used++
	if one := l.byName[name]; one != nil {
		one.take(1)
	}
}

// unsureAll has the table asked for what is held of every limited lane.
func (l *lanes) unsureAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.byName {
		one.grant.unsure = true
	}
}

// crowded sets how many of a number of slots are taken by what is not counted here, and reports whether that leaves more than before.
func (l *lanes) crowded(slots, taken int) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.total
	l.total = slots - taken
	return l.total > before
}
