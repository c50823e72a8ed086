package torture

import (
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// backlogInjectors inject faults while the fleet has no free slots, so that jobs taken back from a pod stay pending for a while.
var backlogInjectors = []injector{
	{name: "freeze_full_house", fault: "F2", weight: .07, aim: atPod, shortest: leaseDuration + 2*time.Second, longest: leaseDuration + 4*time.Second, do: freezeFullHouse},
}

// freezeFullHouse freezes a pod while it is running handlers, and keeps all other pods busy until after the pod has resumed. When the pod
// resumes, its jobs have therefore been taken back but not reclaimed.
func freezeFullHouse(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	var filling sync.WaitGroup
	for _, p := range s.w.Pods() {
		if p == s.pod || p.URL() == "" {
			continue
		}
		filling.Go(func() {
			first := 90 // ahead of all other jobs that are waiting for a slot
			long := simple("demo.sleep", `{"ms":%d}`, (s.act.For + 2*time.Second).Milliseconds())
			long.Priority = &first
			for range podSlots {
				if s.submit(p, long).Outcome != history.OK {
					return
				}
			}
		})
	}
	filling.Wait()
	for range podSlots {
		s.submit(s.pod, simple("demo.sleep", `{"ms":600}`))
	}
	return s.frozen(s.at, s.waitPlanned)
}
