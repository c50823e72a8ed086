package runner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/poller"
)

// dueSource is due until it is swept.
type dueSource struct {
	due   atomic.Int64
	polls atomic.Int64
}

func (s *dueSource) Poll(context.Context) bool { s.polls.Add(1); s.due.Store(0); return false }
func (s *dueSource) NextDue() time.Time {
	if at := s.due.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Each job that begins to wait nudges the poller, but even a continuous stream of nudges must not postpone a poll that is due.
func TestDuePollDespiteFrequentNudges(t *testing.T) {
	t.Parallel()
	s := &dueSource{}
	p := poller.NewTimer(s, time.Hour)
	go p.Run(t.Context())
	for s.polls.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	s.due.Store(time.Now().Add(50 * time.Millisecond).UnixNano())
	for began := time.Now(); s.polls.Load() == 1; {
		if time.Since(began) > 20*time.Second {
			t.Fatal("nudged for 20 s without a poll, although something was due after 50 ms")
		}
		p.Nudge()
		time.Sleep(2 * time.Millisecond)
	}
}
