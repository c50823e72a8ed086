package telemetry

import (
	"sync"

	"github.com/trapeze-run/trapeze/job"
)

// Ends counts the jobs that this pod's statements have finished, by kind, state and error class.
type Ends struct {
	finished *Vec[*Counter] // error_class, kind, outcome

	mu     sync.Mutex
	known  map[string]*KindEnds // kinds with a handler on this pod
	others KindLabels           // kinds that only other programs handle
}

// NewEnds returns an Ends whose counters belong to m.
func NewEnds(m *Metrics) *Ends { return &Ends{finished: m.Finished, known: map[string]*KindEnds{}} }

// KindEnds holds a kind's counters, to save a lookup for each job.
type KindEnds struct {
	succeeded, cancelled *Counter
	failed               map[job.ErrorClass]*Counter
}

// Of registers a kind with a handler on this pod, and returns its counters. They start at 0, so that the first failure shows up as an
// increase.
func (e *Ends) Of(kind string) *KindEnds {
	c := &KindEnds{succeeded: e.counter(kind, job.Succeeded, ""), cancelled: e.counter(kind, job.Cancelled, ""), failed: map[job.ErrorClass]*Counter{}}
	for _, class := range job.ErrorClasses() {
		c.failed[class] = e.counter(kind, job.Failed, class)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[kind] = c
	return c
}

func (e *Ends) counter(kind string, state job.State, class job.ErrorClass) *Counter {
	return e.finished.WithLabelValues(string(class), kind, string(state))
}

// Of returns the counter for an outcome, or nil if the class is unknown.
func (c *KindEnds) Of(state job.State, class job.ErrorClass) *Counter {
	switch state {
	case job.Succeeded:
		return c.succeeded
	case job.Cancelled:
		return c.cancelled
	}
	return c.failed[class]
}

// Count counts a finished job. The class is empty unless the job failed.
func (e *Ends) Count(state job.State, class job.ErrorClass, kind string) {
	e.mu.Lock()
	known := e.known[kind]
	e.mu.Unlock()
	if known != nil {
		known.Of(state, class).Inc()
		return
	}
	e.counter(e.others.Label(kind), state, class).Inc()
}

// MaxKindLabels is the maximum number of other programs' kinds that a metric uses as labels. Clients and remote workers choose the names,
// and each name occupies memory until the pod exits. Further kinds are counted as "(other)".
const MaxKindLabels = 1000

// KindLabels tracks which of other programs' kinds a metric uses as labels.
type KindLabels struct {
	mu    sync.Mutex
	named map[string]bool
}

// Label returns the label for a kind.
func (k *KindLabels) Label(kind string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.named == nil {
		k.named = map[string]bool{}
	}
	if !k.named[kind] && len(k.named) >= MaxKindLabels {
		return "(other)"
	}
	k.named[kind] = true
	return kind
}
