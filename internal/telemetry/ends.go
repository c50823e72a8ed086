package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/job"
)

// Ends counts jobs that statements of this pod ended, by kind, state and error class.
type Ends struct {
	finished *prometheus.CounterVec // error_class, kind, outcome

	mu     sync.Mutex
	known  map[string]*KindEnds // kinds with a handler on this pod
	others KindLabels           // kinds that only other programs have
}

// KindEnds are the counters of one kind, resolved once instead of for each job.
type KindEnds struct {
	succeeded, cancelled prometheus.Counter
	failed               map[job.ErrorClass]prometheus.Counter
}

// Of returns the counters of a kind with a handler on this pod. They are there from the start, at 0, so that the first failure shows as a
// rise.
func (e *Ends) Of(kind string) *KindEnds {
	c := &KindEnds{succeeded: e.counter(kind, job.Succeeded, ""), cancelled: e.counter(kind, job.Cancelled, ""), failed: map[job.ErrorClass]prometheus.Counter{}}
	for _, class := range job.ErrorClasses() {
		c.failed[class] = e.counter(kind, job.Failed, class)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[kind] = c
	return c
}

func (e *Ends) counter(kind string, state job.State, class job.ErrorClass) prometheus.Counter {
	return e.finished.With(prometheus.Labels{"kind": kind, "outcome": string(state), "error_class": string(class)})
}

// Of returns the counter of an end; nil for a class that is not known.
func (c *KindEnds) Of(state job.State, class job.ErrorClass) prometheus.Counter {
	switch state {
	case job.Succeeded:
		return c.succeeded
	case job.Cancelled:
		return c.cancelled
	}
	return c.failed[class]
}

// Count counts the ends of jobs of some kinds, one for each; class is that of failures.
func (e *Ends) Count(state job.State, class job.ErrorClass, kinds ...string) {
	for _, kind := range kinds {
		e.mu.Lock()
		known := e.known[kind]
		e.mu.Unlock()
		if known != nil {
			known.Of(state, class).Inc()
			continue
		}
		e.counter(e.others.Label(kind), state, class).Inc()
	}
}

// MaxKindLabels bounds the kinds of other programs that metrics name: clients and remote workers choose those names, and each takes memory
// of the pod for ever. The others are one kind, "(other)".
const MaxKindLabels = 1000

// KindLabels are the kinds of other programs that a metric names.
type KindLabels struct {
	mu    sync.Mutex
	named map[string]bool
}

// Label returns the label of a kind.
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
