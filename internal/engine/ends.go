package engine

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/job"
)

// ends counts jobs that statements of this pod ended, by kind, state and error class.
type ends struct {
	finished *prometheus.CounterVec // error_class, kind, outcome

	mu     sync.Mutex
	known  map[string]*endCounters // kinds with a handler on this pod
	others KindLabels              // kinds that only other programs have
}

// endCounters are the counters of one kind, resolved once instead of for each job.
type endCounters struct {
	succeeded, cancelled prometheus.Counter
	failed               map[job.ErrorClass]prometheus.Counter
}

// of returns the counters of a kind with a handler on this pod. They are there from the start, at 0, so that the first failure shows as a
// rise.
func (e *ends) Of(kind string) *endCounters {
	c := &endCounters{succeeded: e.counter(kind, job.Succeeded, ""), cancelled: e.counter(kind, job.Cancelled, ""), failed: map[job.ErrorClass]prometheus.Counter{}}
	for _, class := range job.ErrorClasses() {
		c.failed[class] = e.counter(kind, job.Failed, class)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[kind] = c
	return c
}

func (e *ends) counter(kind string, state job.State, class job.ErrorClass) prometheus.Counter {
	return e.finished.With(prometheus.Labels{"kind": kind, "outcome": string(state), "error_class": string(class)})
}

// counter returns the counter of an end; nil for a class that is not known.
func (c *endCounters) counter(state job.State, class job.ErrorClass) prometheus.Counter {
	switch state {
	case job.Succeeded:
		return c.succeeded
	case job.Cancelled:
		return c.cancelled
	}
	return c.failed[class]
}

// count counts the ends of jobs of some kinds, one for each; class is that of failures.
func (e *ends) Count(state job.State, class job.ErrorClass, kinds ...string) {
	for _, kind := range kinds {
		e.mu.Lock()
		known := e.known[kind]
		e.mu.Unlock()
		if known != nil {
			known.counter(state, class).Inc()
			continue
		}
		e.counter(e.others.Label(kind), state, class).Inc()
	}
}

// countRun counts the end of a run, in a state that may be another than its handler asked for.
func (e *ends) countRun(k *Kind, state job.State, class job.ErrorClass) {
	if state != job.Failed {
		class = ""
	}
	if k.Ends == nil {
		e.Count(state, class, k.Name)
		return
	}
	k.Ends.counter(state, class).Inc()
}

// maxKindLabels bounds the kinds of other programs that metrics name: clients and remote workers choose those names, and each takes memory
// of the pod for ever. The others are one kind, "(other)".
const MaxKindLabels = 1000

// kindLabels are the kinds of other programs that a metric names.
type KindLabels struct {
	mu    sync.Mutex
	named map[string]bool
}

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
