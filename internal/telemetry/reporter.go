package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/job"
)

// Hook is called when a job or an attempt has finished.
type Hook func(context.Context, job.End)

// Hooks holds the host's hooks, any of which can be nil.
type Hooks struct {
	End   Hook // called when a job ends
	Retry Hook // called after a failed attempt that will be retried; the job is pending
}

// Reporter counts finished jobs and calls the hooks. It is safe for concurrent use.
type Reporter struct {
	Stats     *MinuteCounter      // counts for the statistics table, which the pod writes once a minute
	CountedAs func(string) string // returns the name under which Stats counts a lane; if nil, its name
	counts    *Ends
	hooks     Hooks
	calls     *calls
}

// NewReporter returns a Reporter whose counters belong to m and which calls the given hooks.
func NewReporter(m *Metrics, hooks Hooks, log *slog.Logger, repeated *Damped) *Reporter {
	return &Reporter{Stats: NewMinuteCounter(), counts: NewEnds(m), hooks: hooks, calls: newCalls(log, repeated)}
}

// Of returns the counters for a kind with a handler in this process.
func (e *Reporter) Of(kind string) *KindEnds { return e.counts.Of(kind) }

// Report is like [Reporter.ReportRun], but for a job that ended without its handler returning.
func (e *Reporter) Report(kind *KindEnds, end job.End) { e.ReportRun(kind, end, NoRun) }

// ReportRun reports a finished job, with the wait and run time of its last attempt. The kind argument holds the counters for the job's
// kind, or is nil. ReportRun does not block.
func (e *Reporter) ReportRun(kind *KindEnds, end job.End, times RunTimes) {
	lane := end.Lane
	if e.CountedAs != nil {
		lane = e.CountedAs(lane)
	}
	e.Stats.Count(lane, end.Kind, end.State, times)
	if kind == nil {
		e.counts.Count(end.State, end.ErrorClass, end.Kind)
	} else {
		kind.Of(end.State, end.ErrorClass).Inc()
	}
	e.call(e.hooks.End, end)
}

// ReportRetry reports a failed attempt that will be retried. It does not block.
func (e *Reporter) ReportRetry(end job.End) { e.call(e.hooks.Retry, end) }

func (e *Reporter) call(hook Hook, end job.End) {
	if hook == nil {
		return
	}
	if end.ErrorClass == job.ClassPanic {
		end.Error, end.Stack = routine.SplitStack(end.Error)
	}
	e.calls.add(hook, end)
}

// ReportAll reports the jobs that a statement has finished.
func (e *Reporter) ReportAll(list []job.End) {
	for _, end := range list {
		e.Report(nil, end)
	}
}

// Drain waits for the remaining hook calls, for a few seconds at most. See [calls.drain].
func (e *Reporter) Drain() { e.calls.drain(drainFor) }

const (
	// waitAtMost is the maximum length of the queue when hooks are slow. The second half of the queue is reserved for failed jobs.
	waitAtMost = 1000
	// callFor is the timeout for a call.
	callFor = 10 * time.Second
	// drainFor is the maximum time that a stopping process waits for the remaining calls.
	drainFor = 5 * time.Second
)

// tooSlow is the log message for skipped calls, passed to [telemetry.Damped].
const tooSlow = "hook (OnEnd, OnRetry) is too slow: skipping calls"

// calls queues hook calls for finished jobs, and makes them one after another on a goroutine that runs only while calls are queued.
type calls struct {
	log      *slog.Logger
	repeated *Damped
	alive    context.Context // parent of each call's context; drain cancels it
	die      context.CancelFunc

	mu    sync.Mutex
	queue []called
	idle  chan struct{} // closed when the goroutine has ended; nil if it is not running
}

// called is a queued call.
type called struct {
	hook Hook
	end  job.End
}

func newCalls(log *slog.Logger, repeated *Damped) *calls {
	c := &calls{log: log, repeated: repeated}
	c.alive, c.die = context.WithCancel(context.Background())
	return c
}

// add queues a hook call for a finished job, unless the queue is full.
func (c *calls) add(hook Hook, e job.End) {
	c.mu.Lock()
	room := waitAtMost
	if e.State != job.Failed {
		room /= 2
	}
	full := len(c.queue) >= room
	if !full && c.alive.Err() == nil {
		if c.queue = append(c.queue, called{hook, e}); c.idle == nil {
			c.idle = make(chan struct{})
			go c.run(c.idle)
		}
	}
	c.mu.Unlock()
	if full {
		c.repeated.Warn(c.alive, tooSlow, JobID, e.ID, Kind, e.Kind)
	}
}

// run calls hooks until the queue is empty.
func (c *calls) run(idle chan struct{}) {
	defer close(idle)
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.queue, c.idle = nil, nil
			c.mu.Unlock()
			c.repeated.Over(c.alive, tooSlow)
			return
		}
		next := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		if err := c.call(next); err != nil {
			c.log.ErrorContext(c.alive, "hook (OnEnd, OnRetry) panicked", JobID, next.end.ID, Kind, next.end.Kind, Err, err)
		}
	}
}

// call calls a hook on a separate goroutine, since the hook may call runtime.Goexit.
func (c *calls) call(one called) error {
	ctx, cancel := context.WithTimeout(c.alive, callFor)
	defer cancel()
	return routine.Call(func() error {
		one.hook(ctx, one.end)
		return nil
	})
}

// drain waits until no calls are left. If some are left after the given time, it cancels the context of the current call and drops all
// remaining and later ones.
func (c *calls) drain(most time.Duration) {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
		return
	case <-timer.C:
	}
	c.die()
	c.mu.Lock()
	left := len(c.queue)
	c.queue = nil
	c.mu.Unlock()
	c.log.WarnContext(c.alive, "hook (OnEnd, OnRetry) did not return in time: skipping the remaining calls", Jobs, left)
}

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
