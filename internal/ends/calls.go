package ends

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// waitAtMost bounds the queue of ends before a slow hook. The second half of it is for jobs that have failed alone.
	waitAtMost = 1000
	// callFor is the timeout of a call.
	callFor = 10 * time.Second
	// drainFor bounds the wait of a stopping process for the remaining calls.
	drainFor = 5 * time.Second
)

// tooSlow is the message of [telemetry.Damped].
const tooSlow = "hook (OnEnd, OnRetry) is too slow: skipping calls"

// calls calls hooks with one end after the other, on a goroutine that runs while there are any.
type calls struct {
	log      *slog.Logger
	repeated *telemetry.Damped
	alive    context.Context // of the calls
	die      context.CancelFunc

	mu    sync.Mutex
	queue []called
	idle  chan struct{} // closed when the goroutine has ended; nil: it does not run
}

// called is a call that waits for its turn.
type called struct {
	hook Hook
	end  job.End
}

func newCalls(log *slog.Logger, repeated *telemetry.Damped) *calls {
	c := &calls{log: log, repeated: repeated}
	c.alive, c.die = context.WithCancel(context.Background())
	return c
}

// add has a hook called with an end, unless too many wait.
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
		c.repeated.Warn(c.alive, tooSlow, telemetry.JobID, e.ID, telemetry.Kind, e.Kind)
	}
}

// run calls the hooks until the queue is empty.
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
			c.log.ErrorContext(c.alive, "hook (OnEnd, OnRetry) panicked", telemetry.JobID, next.end.ID, telemetry.Kind, next.end.Kind, telemetry.Err, err)
		}
	}
}

// call calls a hook, on a goroutine that the hook may end.
func (c *calls) call(one called) error {
	ctx, cancel := context.WithTimeout(c.alive, callFor)
	defer cancel()
	return guard.Call(func() error {
		one.hook(ctx, one.end)
		return nil
	})
}

// drain waits until no call is left, at most for a time. After that it ends the context of the call under way, and drops the others and all
// that come.
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
	c.log.WarnContext(c.alive, "hook (OnEnd, OnRetry) did not return in time: skipping the remaining calls", telemetry.Jobs, left)
}
