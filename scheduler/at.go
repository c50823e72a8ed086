package scheduler

import (
	"context"
	"time"
)

// alarm is a function that runs at a moment. Timers of the standard library are all it takes: a one-time job of gocron holds up its
// whole scheduler when its moment has passed before it is looked at, as after a pause of the process.
type alarm struct {
	do      func(ctx context.Context)
	timer   *time.Timer
	due     bool // its moment has come, and do has not begun for it
	running bool
}

// At runs do once, in a while from now: at once if that is not positive, and never before [Scheduler.Run]. A later call of the same
// name replaces the moment, and the function; moments of it that have come but not begun are forgotten. A name's function runs one
// at a time: a moment that comes while it runs is kept until it has ended. The machine's clock may be put forward or back meanwhile.
// Safe for concurrent use, also by do itself.
func (s *Scheduler) At(name string, in time.Duration, do func(ctx context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	a := s.alarms[name]
	if a == nil {
		a = &alarm{}
		s.alarms[name] = a
	} else {
		a.timer.Stop()
	}
	a.do, a.due = do, false
	var timer *time.Timer
	timer = time.AfterFunc(in, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a.timer == timer { // not replaced while it waited for the lock
			a.due = true
			s.begin(a)
		}
	})
	a.timer = timer
}

// begin runs the function of an alarm that is due, unless one runs already. The caller holds the lock.
func (s *Scheduler) begin(a *alarm) {
	if !a.due || a.running || !s.started || s.ctx.Err() != nil {
		return
	}
	a.due, a.running = false, true
	do := a.do
	s.runs.Go(func() {
		do(s.ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		a.running = false
		s.begin(a)
	})
}

// startAlarms lets alarms go off.
func (s *Scheduler) startAlarms() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	for _, a := range s.alarms {
		s.begin(a)
	}
}

// stopAlarms ends the context of all that runs, so that no alarm begins any more, and waits for those that run.
func (s *Scheduler) stopAlarms() {
	s.mu.Lock()
	s.stop()
	for _, a := range s.alarms {
		a.timer.Stop()
	}
	s.mu.Unlock()
	s.runs.Wait()
}
