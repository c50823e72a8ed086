package runnertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Point is a moment in the life of a job at which its pod can die.
type Point int

// The points, in the order in which a job passes them.
const (
	// AfterClaim: the job is this pod's, by a claim, or by the commit that ended the step before; its handler is not called.
	AfterClaim Point = iota + 1
	// MidStep: the handler has committed something of its own, with Job.Tx or Job.Checkpoint, and not returned. To the
	// database a handler that commits nothing is the same all along: its pod dies when it returns. See also [Harness.Die].
	MidStep
	// BeforeFinish: the handler has returned; of what it returned nothing has been sent.
	BeforeFinish
	// InFlush: the statement, or the commit, that ends the job for now was on its way and has not arrived. It may be that of
	// several jobs.
	InFlush
	// AfterFinish: the job has ended, or waits, and is not this pod's any more. A next step may be, and is not started.
	AfterFinish
)

// String is the point in words.
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

// ErrDead is the cause with which the contexts of a dead pod's handlers end.
var ErrDead = errors.New("runnertest: the pod has died")

// death is a death that is still to come.
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

// DieAt has the pod die when a job passes a point the next time: a job of one of the kinds, or of any when none is named. See the
// package's documentation for what that is. Deaths that are asked for one after the other come one after the other. A death
// that has not come when the test ends fails it.
//
// A job may be recovered Options.MaxCrashes times; with the third death on the same job, by default, it fails.
func (h *Harness) DieAt(at Point, kinds ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaths = append(h.deaths, death{at, kinds})
}

// Die has the pod die that runs at this moment, for a handler that knows better than a [Point] where. The handler's context has
// ended when Die returns; the handler should end too.
func (h *Harness) Die() {
	h.mu.Lock()
	p := h.pod
	h.mu.Unlock()
	if p != nil {
		p.die()
	}
}

// Deaths is how many pods have died.
func (h *Harness) Deaths() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.died
}

// strikes reports whether the next death comes now, at a point that a job of a kind passes, and takes it off the list.
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
