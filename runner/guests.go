package runner

import (
	"github.com/trapeze-run/trapeze/internal/slots"

	"slices"
	"sync"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// guests are the remote workers that a pod serves.
type guests struct {
	mu   sync.Mutex
	byID map[string]*Guest
	wg   sync.WaitGroup
	shut bool

	adoptions *adoptions

	measured kindLabels
}

// ran measures a run of a kind that only remote workers have.
func (s *guests) ran(m *telemetry.Metrics, kind string, seconds float64) {
	m.RunSeconds.WithLabelValues(s.measured.label(kind)).Observe(seconds)
}

func (s *guests) find(id string) *Guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// add takes a guest in, unless the pod stops, and returns the one of the same id before it.
func (s *guests) add(g *Guest) (before *Guest, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil, false
	}
	if s.byID == nil {
		s.byID = map[string]*Guest{}
	}
	before = s.byID[g.opts.ID]
	s.byID[g.opts.ID] = g
	s.wg.Add(1)
	return before, true
}

func (s *guests) remove(g *Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[g.opts.ID] == g {
		delete(s.byID, g.opts.ID)
	}
	s.wg.Done()
}

// marksFor are the marks of those who run the same kinds: the look at what they have to pass by is one for all.
func (s *guests) marksFor(kinds []string) *slots.Marks {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.byID {
		if slices.Equal(g.r.mineAll, kinds) {
			return g.r.marks
		}
	}
	return &slots.Marks{}
}

// each calls do for every guest, outside the lock.
func (s *guests) each(do func(*Guest)) {
	s.mu.Lock()
	list := make([]*Guest, 0, len(s.byID))
	for _, g := range s.byID {
		list = append(list, g)
	}
	s.mu.Unlock()
	for _, g := range list {
		do(g)
	}
}

// wake has every guest look for jobs.
func (s *guests) wake() {
	s.each(func(g *Guest) {
		g.r.heard.Store(true)
		g.r.wake()
	})
}

// tell ends the handler of a run of a guest's.
func (s *guests) tell(l job.Lease, why job.Reason) {
	if g := s.find(l.Pod); g != nil {
		if one := g.r.runs.find(l.JobID, l.Fence); one != nil {
			g.r.cancelRun(one, why)
		}
	}
}

// leave ends all guests, and returns when they have ended: their workers go on, and come back to other pods.
func (s *guests) leave() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	s.each(func(g *Guest) { g.finish(job.ErrShutdown) })
	s.wg.Wait()
}
