package pod

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// watchClock logs a jump of the database's clock.
func (p *Pod) watchClock(ctx context.Context, sent, now time.Time) {
	switch jump := p.Clock.Observe(sent, time.Now(), now); {
	case jump < 0:
		p.Log.WarnContext(ctx, "the database's clock was set back: jobs and schedules that were due by then wait until it has caught up",
			telemetry.Pod, p.opts.Name, "jump", -jump.Round(time.Second), "until", now.Add(-jump).UTC().Round(time.Second))
	case jump > 0:
		p.Log.WarnContext(ctx, "the database's clock was set forward, or this process was suspended: delayed jobs and schedules are due early",
			telemetry.Pod, p.opts.Name, "jump", jump.Round(time.Second))
	}
}
