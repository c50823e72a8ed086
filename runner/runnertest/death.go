package runnertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Point is a point in a job's execution at which its pod can die.
type Point int

// The points, in the order in which a job reaches them.
const (
	// AfterClaim is the point at which the pod holds the job but has not called its handler. The pod acquired the job through a claim, or
	// through the commit that ended the previous step.
	AfterClaim Point = iota + 1
	// MidStep is the point after the handler has committed data with Job.Tx or Job.Checkpoint, and before it returns. If a handler commits
	// nothing, the database cannot distinguish the stages of the run, so the pod dies when the handler returns. See also [Harness.Die].
	MidStep
	// BeforeFinish is the point after the handler has returned and before its outcome is sent.
	BeforeFinish
	// InFlush is the point at which the statement or commit that ends the run has been sent but has not arrived. Several jobs may share it.
	InFlush
	// AfterFinish is the point at which the job has finished or is waiting, and the pod no longer holds it. The pod may hold a next step
	// that has not started.
	AfterFinish
)

// String returns the point in words.
func (p Point) String() string {
	switch p {
	case AfterClaim:
		return "after a claim"
	case MidStep:
		return "mid-step"
	case BeforeFinish:
		return "before a finish"
	case InFlush:
		return "in a flush"
	case AfterFinish:
		return "after a finish"
	}
	return fmt.Sprintf("at the point %d", int(p))
}

// ErrDead is the cancellation cause of the handlers' contexts when their pod dies.
var ErrDead = errors.New("runnertest: the pod has died")

// death is a requested death that has not happened yet.
type death struct {
	at    Point
	kinds []string
}

func (d death) String() string {
	if len(d.kinds) == 0 {
		return d.at.String()
	}
	return fmt.Sprintf("%s of %s", d.at, strings.Join(d.kinds, " or "))
}

// DieAt makes the pod die the next time a job of one of the kinds reaches a point. Without kinds, a job of any kind triggers the death. The
// package documentation explains what happens when a pod dies. If several deaths are requested, they happen in order. The test fails if it
// ends before all of them have happened.
//
// A job survives at most Options.MaxCrashes − 1 deaths: by default, the third death of its pod fails it.
func (h *Harness) DieAt(at Point, kinds ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaths = append(h.deaths, death{at, kinds})
}

// Die makes the current pod die now. A handler can call it to make its pod die at a place that no [Point] describes. When Die returns, the
// handler's context has been cancelled, and the handler should return.
func (h *Harness) Die() {
	h.mu.Lock()
	p := h.pod
	h.mu.Unlock()
	if p != nil {
		p.die()
	}
}

// Deaths returns the number of pods that have died.
func (h *Harness) Deaths() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.died
}

// takeDeath reports whether the next death is due when a job of the given kind reaches a point. If so, it removes the death from the list.
func (h *Harness) takeDeath(at Point, kind string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.deaths) == 0 || h.deaths[0].at != at {
		return false
	}
	if kinds := h.deaths[0].kinds; len(kinds) > 0 && !slices.Contains(kinds, kind) {
		return false
	}
	h.deaths = h.deaths[1:]
	return true
}
