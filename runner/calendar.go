package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/scheduler"
)

// calendar fires the schedules of the kinds that this program has handlers of, also where it does not run them, and of those that remote
// workers run whose streams it serves: to submit a job takes no slot, so a deployment of web pods alone fires too. When something is due is the database's answer, with every heartbeat; the
// clock of this process only measures how long to wait until then, and what it gets wrong the next answer mends.
type calendar struct {
	r     *Runner
	kinds []string // of the program; fixed by Run
	due   wait.Signal

	mu    sync.Mutex
	clock *scheduler.Scheduler // nil: not running
}

func newCalendar(r *Runner) *calendar { return &calendar{r: r, due: wait.NewSignal()} }

// looksAfter lists the kinds whose schedules fire here.
func (c *calendar) looksAfter() []string {
	kinds := slices.Clone(c.kinds)
	c.r.guests.each(func(g *Guest) { kinds = append(kinds, g.r.mineAll...) })
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// alarmWithin is how far ahead an alarm is set; later heartbeats tell of what is farther.
const alarmWithin = time.Minute

// told takes what the database said: its now, and when the next schedule fires.
func (c *calendar) told(now time.Time, next *time.Time) {
	if next == nil {
		return
	}
	switch wait := next.Sub(now); {
	case wait <= 0:
		c.knock()
	case wait <= max(alarmWithin, 3*c.r.opts.HeartbeatEvery):
		c.alarm(wait)
	}
}

func (c *calendar) knock() {
	c.due.Set()
}

func (c *calendar) alarm(wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock == nil {
		return // not run yet, and Run begins with a look
	}
	if err := c.clock.After("fires", wait, func(context.Context) { c.knock() }); err != nil {
		c.r.log.DebugContext(context.Background(), "no alarm for the next fire: a heartbeat finds it", telemetry.Err, err)
	}
}

// run fires what is due until ctx ends.
func (c *calendar) run(ctx context.Context) {
	clock, err := scheduler.New(c.r.log)
	if err != nil {
		c.r.log.ErrorContext(ctx, "schedules fire with the heartbeat only", telemetry.Err, err)
	} else {
		c.mu.Lock()
		c.clock = clock
		c.mu.Unlock()
		var ticking sync.WaitGroup
		ticking.Go(func() { clock.Run(ctx) })
		defer ticking.Wait()
	}
	c.knock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		}
		c.look(ctx)
	}
}

// look fires what is due, and sets the alarm for what comes next. What is due even then is in another pod's hands, or could not be
// decided: the next heartbeat tells.
func (c *calendar) look(ctx context.Context) {
	c.r.fireDue(ctx, nil)
	now, next, err := c.r.front.NextFire(ctx, c.looksAfter())
	if err != nil {
		_ = c.r.dbError(err) // the next heartbeat tells
		return
	}
	c.told(now, next)
}
