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
