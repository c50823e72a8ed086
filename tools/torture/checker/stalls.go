package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// stallFrom is the minimum duration of a sample, or of one of the sampler's small commits, that shows that the machine is in trouble. Other
// programs may be keeping its disk or CPUs busy, which must not count against the fleet. Shorter delays are within the slack of every
// check.
const stallFrom = time.Second

// stallsOf finds the periods in which the machine itself was slow, as shown by slow samples, slow commits and gaps between samples.
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

// starvedFrom is the share of time that a pod's threads together must spend waiting for a CPU before the machine is considered too busy for
// the pod's timing to be judged. On an otherwise idle machine, the share is a few percent.
const starvedFrom = 0.5

// starvedPods returns, for each pod, the periods in which the share of time that its threads spent waiting for a CPU was at least
// starvedFrom.
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
