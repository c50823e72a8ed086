package pod

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// clockTolerance is the smallest jump of the database's clock that is reported.
const clockTolerance = 2 * time.Second

// databaseClock compares the database's clock with this process's monotonic clock, to notice when the former is set. Heartbeats report to
// it.
type databaseClock struct {
	mu          sync.Mutex
	base        time.Time     // the first observation, on the process's clock
	least, most time.Duration // bounds of the database's time minus the monotonic time, at the latest heartbeat
}

// observe records that the database's clock showed now at a moment between sent and received. It returns by how much, at least, the clock
// has jumped since the previous observation; a negative value means back.
func (c *databaseClock) observe(sent, received, now time.Time) (jump time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.base.IsZero()
	if first {
		c.base = sent
	}
	at := now.Sub(c.base)
	least, most := at-received.Sub(c.base), at-sent.Sub(c.base)
	switch {
	case first:
	case most < c.least-clockTolerance:
		jump = most - c.least
	case least > c.most+clockTolerance:
		jump = least - c.most
	}
	c.least, c.most = least, most
	return jump
}

// watchClock logs a jump of the database's clock.
func (p *Pod) watchClock(ctx context.Context, sent, now time.Time) {
	switch jump := p.clock.observe(sent, time.Now(), now); {
	case jump < 0:
		p.Log.WarnContext(ctx, "the database's clock was set back: jobs and schedules that were due by then wait until it has caught up",
			telemetry.Pod, p.opts.Name, "jump", -jump.Round(time.Second), "until", now.Add(-jump).UTC().Round(time.Second))
	case jump > 0:
		p.Log.WarnContext(ctx, "the database's clock was set forward, or this process was suspended: delayed jobs and schedules are due early",
			telemetry.Pod, p.opts.Name, "jump", jump.Round(time.Second))
	}
}
