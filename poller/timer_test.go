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

// source counts its polls and returns the results that the test has set.
type source struct {
	more  int // number of polls that report more work
	takes time.Duration

	mu    sync.Mutex
	due   time.Time
	polls []time.Time
}

func (s *source) seen() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.polls)
}

func (s *source) setDue(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = at
}

func (s *source) Poll(context.Context) bool {
	s.mu.Lock()
	s.polls = append(s.polls, time.Now())
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

func TestPollIntervals(t *testing.T) {
	s := &source{}
	bubble(t, s, 10*time.Second, func(is *is.I, p *Timer) {
		is.Equal(len(s.seen()), 1) // the first poll is immediate
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(len(s.seen()) > 340 && len(s.seen()) < 380) // about 360 polls in an hour
		distinct := map[time.Duration]bool{}
		for i := range s.seen()[1:] {
			gap := s.seen()[i+1].Sub(s.seen()[i])
			distinct[gap] = true
			is.True(gap >= 9*time.Second && gap <= 11*time.Second) // within ± 10 %
		}
		is.True(len(distinct) > 100) // the intervals vary
	})
}

func TestItPollsUntilDry(t *testing.T) {
	s := &source{more: 5}
	bubble(t, s, 10*time.Second, func(is *is.I, p *Timer) {
		is.Equal(len(s.seen()), 6)
		is.Equal(s.seen()[5].Sub(s.seen()[0]), time.Duration(0)) // there is no wait between polls
	})
}

func TestPollerWakeUpsDuringPoll(t *testing.T) {
	s := &source{takes: time.Second}
	bubble(t, s, time.Hour, func(is *is.I, p *Timer) {
		is.Equal(len(s.seen()), 1) // the first poll is in progress
		for range 1000 {
			p.Wake()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		is.Equal(len(s.seen()), 2) // one more poll follows
		p.Wake()
		synctest.Wait()
		is.Equal(len(s.seen()), 3) // a wake-up makes an idle poller poll immediately
	})
}

func TestADueMomentIsKept(t *testing.T) {
	s := &source{}
	bubble(t, s, time.Hour, func(is *is.I, p *Timer) {
		due := time.Now().Add(7 * time.Second)
		s.setDue(due)
		p.Nudge()
		synctest.Wait()
		is.Equal(len(s.seen()), 1) // a nudge causes no poll
		time.Sleep(6 * time.Second)
		synctest.Wait()
		is.Equal(len(s.seen()), 1) // no poll happens before the due time
		time.Sleep(time.Second)
		synctest.Wait()
		is.Equal(len(s.seen()), 2)
		is.Equal(s.seen()[1], due) // the poller polls at the due time
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		is.Equal(len(s.seen()), 2) // the poller polls only once
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
		is.True(s.polls <= 52) // polls are at least 20 ms apart
	})
}

// stubborn is a source that is always due.
type stubborn struct {
	polls int
	due   time.Time
}

func (s *stubborn) Poll(context.Context) bool { s.polls++; return false }
func (s *stubborn) NextDue() time.Time        { return s.due }

func TestPollerEndBetweenPolls(t *testing.T) {
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
