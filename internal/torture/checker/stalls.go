package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// stallFrom is how long a look or a small commit of the sampler's own takes when the machine is in trouble: it may be
// other programs that keep its disk or its processors busy, which is no fault of whoever is judged. Less is within the
// slack of every judgement.
const stallFrom = time.Second

// stallsOf finds when the machine itself was slow: looks and commits that took long, and looks that failed.
func stallsOf(run *history.Run) (list []span) {
	var last time.Time
	for _, s := range run.Samples {
		if !last.IsZero() && s.T.Sub(last) >= stallFrom {
			list = append(list, span{last, s.T})
		}
		last = s.T
		if s.Took >= stallFrom {
			list = append(list, span{s.T, s.T.Add(s.Took)})
		}
		if c := s.Commit; c != nil && c.Took >= stallFrom {
			list = append(list, span{c.T, c.T.Add(c.Took)})
		}
	}
	return list
}

// starvedFrom is what part of the time a pod's threads, all together, wait for a processor when other programs keep the
// machine so busy that the pod cannot be judged by the clock. On a machine that is its own it is a few hundredths.
const starvedFrom = 0.5

// starvedPods finds when pods got no processor, by their names.
func starvedPods(run *history.Run) map[string][]span {
	found := map[string][]span{}
	type look struct {
		at time.Time
		n  history.PodNumbers
	}
	last := map[string]look{}
	for _, s := range run.Samples {
		for _, n := range s.Pods {
			before := last[n.Pod]
			last[n.Pod] = look{s.T, n}
			if n.PID == 0 || n.PID != before.n.PID {
				continue
			}
			if waited := n.Starved - before.n.Starved; waited.Seconds() >= starvedFrom*s.T.Sub(before.at).Seconds() {
				found[n.Pod] = append(found[n.Pod], span{before.at, s.T})
			}
		}
	}
	return found
}
