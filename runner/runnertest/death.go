package runnertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Point is a point in the life of a job at which its pod can die.
type Point int

// The points, in the order in which a job passes them.
const (
	// AfterClaim: the pod holds the job, after a claim or after the commit that ended the previous step. Its handler has not been
	// called.
	AfterClaim Point = iota + 1
	// MidStep: the handler has committed data with Job.Tx or Job.Checkpoint, and has not returned. A handler that commits nothing
	// looks the same to the database all the time: its pod dies when it returns. See also [Harness.Die].
	MidStep
	// BeforeFinish: the handler has returned, and its outcome has not been sent.
	BeforeFinish
	// InFlush: the statement or commit that ends the run was sent and did not arrive. It may be shared by several jobs.
	InFlush
	// AfterFinish: the job has ended or waits, and the pod no longer holds it. The pod may hold a next step, which has not
	// started.
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

// ErrDead is the cause with which the handlers' contexts end when their pod dies.
var ErrDead = errors.New("runnertest: the pod has died")

// death is a death that is requested and has not happened.
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

// DieAt makes the pod die the next time that a job of one of the kinds, or of any kind if none is given, passes a point. The
// package documentation describes a death. Several requested deaths happen in order. The test fails if it ends before all of them
// have happened.
//
// A job may be recovered Options.MaxCrashes times: by default, the third death with the same job fails it.
func (h *Harness) DieAt(at Point, kinds ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaths = append(h.deaths, death{at, kinds})
}

// Die makes the current pod die now. A handler calls it to die at a place that no [Point] names. The handler's context has ended
// when Die returns, and the handler should return.
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

// strikes reports whether the next death happens now, when a job of a kind passes a point, and removes it from the list.
func (h *Harness) strikes(at Point, kind string) bool {
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
