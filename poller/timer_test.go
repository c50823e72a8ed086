package poller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// source counts its sweeps and returns the results that the test has set.
type source struct {
	more  int // number of sweeps that report more work
	takes time.Duration

	mu     sync.Mutex
	due    time.Time
	sweeps []time.Time
}

func (s *source) seen() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sweeps)
}

func (s *source) setDue(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = at
}

func (s *source) Sweep(context.Context) bool {
	s.mu.Lock()
	s.sweeps = append(s.sweeps, time.Now())
	s.mu.Unlock()
	time.Sleep(s.takes)
	if due := s.NextDue(); !due.IsZero() && !time.Now().Before(due) {
		s.setDue(time.Time{})
	}
	s.more--
	return s.more >= 0
}

func (s *source) NextDue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
}

// bubble calls do in a synctest bubble in which a timer is running.
func bubble(t *testing.T, s *source, every time.Duration, do func(is *is.I, p *Timer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := NewTimer(s, every)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { p.Run(ctx); close(ended) }()
		synctest.Wait()
		do(is.New(t), p)
		cancel()
		<-ended
	})
}

func TestPollerSweepIntervals(t *testing.T) {
	s := &source{}
	bubble(t, s, 10*time.Second, func(is *is.I, p *Timer) {
		is.Equal(len(s.seen()), 1) // the first sweep is immediate
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(len(s.seen()) > 340 && len(s.seen()) < 380) // about 360 sweeps in an hour
		distinct := map[time.Duration]bool{}
		for i := range s.seen()[1:] {
			gap := s.seen()[i+1].Sub(s.seen()[i])
			distinct[gap] = true
			is.True(gap >= 9*time.Second && gap <= 11*time.Second) // within ± 10 %
		}
		is.True(len(distinct) > 100) // the intervals vary
	})
}

func TestItSweepsUntilDry(t *testing.T) {
	s := &source{more: 5}
	bubble(t, s, 10*time.Second, func(is *is.I, p *Timer) {
		is.Equal(len(s.seen()), 6)
		is.Equal(s.seen()[5].Sub(s.seen()[0]), time.Duration(0)) // there is no wait between sweeps
	})
}

func TestPollerWakeUpsDuringSweep(t *testing.T) {
	s := &source{takes: time.Second}
	bubble(t, s, time.Hour, func(is *is.I, p *Timer) {
		is.Equal(len(s.seen()), 1) // the first sweep is in progress
		for range 1000 {
			p.Wake()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		is.Equal(len(s.seen()), 2) // one more sweep follows
		p.Wake()
		synctest.Wait()
		is.Equal(len(s.seen()), 3) // a wake-up makes an idle poller sweep immediately
	})
}

func TestADueMomentIsKept(t *testing.T) {
	s := &source{}
	bubble(t, s, time.Hour, func(is *is.I, p *Timer) {
		due := time.Now().Add(7 * time.Second)
		s.setDue(due)
		p.Nudge()
		synctest.Wait()
		is.Equal(len(s.seen()), 1) // a nudge causes no sweep
		time.Sleep(6 * time.Second)
		synctest.Wait()
		is.Equal(len(s.seen()), 1) // no sweep happens before the due time
		time.Sleep(time.Second)
		synctest.Wait()
		is.Equal(len(s.seen()), 2)
		is.Equal(s.seen()[1], due) // the poller sweeps at the due time
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		is.Equal(len(s.seen()), 2) // the poller sweeps only once
	})
}

func TestPollerDueTimeWithdrawn(t *testing.T) {
	s := &source{}
	bubble(t, s, time.Hour, func(is *is.I, p *Timer) {
		s.setDue(time.Now().Add(time.Second))
		p.Nudge()
		synctest.Wait()
		s.setDue(time.Time{})
		time.Sleep(time.Minute)
		synctest.Wait()
		is.Equal(len(s.seen()), 1)
	})
}

func TestPollerFailingSource(t *testing.T) {
	s := &stubborn{}
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		s.due = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { NewTimer(s, time.Hour).Run(ctx); close(ended) }()
		time.Sleep(time.Second)
		cancel()
		<-ended
		is.True(s.sweeps <= 52) // sweeps are at least 20 ms apart
	})
}

// stubborn is a source that is always due.
type stubborn struct {
	sweeps int
	due    time.Time
}

func (s *stubborn) Sweep(context.Context) bool { s.sweeps++; return false }
func (s *stubborn) NextDue() time.Time         { return s.due }

func TestPollerEndBetweenSweeps(t *testing.T) {
	s := &source{more: 1 << 30, takes: time.Second}
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		NewTimer(s, time.Hour).Run(ctx) // returns even though the source always has more
		is.Equal(len(s.seen()), 11)
	})
}

func TestDueTimeDespiteFrequentNudges(t *testing.T) {
	s := &source{}
	bubble(t, s, time.Hour, func(is *is.I, p *Timer) {
		time.Sleep(time.Second)
		due := time.Now().Add(time.Second)
		s.setDue(due)
		for range 300 {
			p.Nudge()
			time.Sleep(least / 2)
		}
		is.True(slices.ContainsFunc(s.seen(), func(at time.Time) bool { return !at.Before(due) && at.Sub(due) <= least }))
	})
}
