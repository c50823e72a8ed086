package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/job"
)

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
