package fleet

import (
	"strings"
	"testing"
	"time"
)

// A pod may declare other pods dead only after two consecutive successful heartbeats, and thus not directly after an outage.
func TestPodJudgementAfterTwoHeartbeats(t *testing.T) {
	t.Parallel()
	l := NewLease("")
	beat := func(counts bool) { l.Renewed(time.Now(), time.Now(), time.Minute, counts) }
	for _, step := range []struct {
		what string
		do   func()
		may  bool
	}{
		{"the first heartbeat", func() { beat(true) }, false},
		{"one out of turn", func() { beat(false) }, false},
		{"the second", func() { beat(true) }, true},
		{"one that failed", func() { l.Missed() }, false},
		{"the first after it", func() { beat(true) }, false},
		{"the second after it", func() { beat(true) }, true},
	} {
		step.do()
		if l.MayJudge() != step.may {
			t.Errorf("after %s: judges others %t", step.what, l.MayJudge())
		}
	}
}

// If trust ended on the wall clock, a pod that is cut off would trust its lease for too long after its clock was set back.
func TestTrustOnMonotonicClock(t *testing.T) {
	t.Parallel()
	l := NewLease("")
	l.Renewed(time.Now(), time.Now(), time.Minute, true)
	if !strings.Contains(l.trust.String(), " m=") {
		t.Errorf("the end of the trust, %s, has no reading of the monotonic clock", l.trust)
	}
}
