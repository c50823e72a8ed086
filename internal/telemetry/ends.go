package telemetry

import (
	"sync"

	"github.com/trapeze-run/trapeze/internal/instrument"

	"github.com/trapeze-run/trapeze/job"
)

// Ends counts the jobs that statements of this pod ended, by kind, state and error class.
type Ends struct {
	finished *instrument.Vec[*instrument.Counter] // error_class, kind, outcome

	mu     sync.Mutex
	known  map[string]*KindEnds // kinds with a handler on this pod
	others KindLabels           // kinds that only other programs have
}

// NewEnds returns an Ends that counts in m.
func NewEnds(m *Metrics) *Ends { return &Ends{finished: m.Finished, known: map[string]*KindEnds{}} }

// KindEnds are the counters of one kind, resolved once instead of for each job.
type KindEnds struct {
	succeeded, cancelled *instrument.Counter
	failed               map[job.ErrorClass]*instrument.Counter
}

// Of returns the counters of a kind with a handler on this pod, initialized with 0, so that the first failure shows as a rise.
func (e *Ends) Of(kind string) *KindEnds {
	c := &KindEnds{succeeded: e.counter(kind, job.Succeeded, ""), cancelled: e.counter(kind, job.Cancelled, ""), failed: map[job.ErrorClass]*instrument.Counter{}}
	for _, class := range job.ErrorClasses() {
		c.failed[class] = e.counter(kind, job.Failed, class)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[kind] = c
	return c
}

func (e *Ends) counter(kind string, state job.State, class job.ErrorClass) *instrument.Counter {
	return e.finished.WithLabelValues(string(class), kind, string(state))
}

// Of returns the counter of an end; nil for an unknown class.
func (c *KindEnds) Of(state job.State, class job.ErrorClass) *instrument.Counter {
	switch state {
	case job.Succeeded:
		return c.succeeded
	case job.Cancelled:
		return c.cancelled
	}
	return c.failed[class]
}

// Count counts the end of a job of a kind; class is set if it failed.
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

// MaxKindLabels limits the kinds of other programs that metrics name. Clients and remote workers choose those names, and each uses memory
// of the pod for ever. Further kinds are counted as "(other)".
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
