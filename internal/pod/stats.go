package pod

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// statsNotWritten is logged through [telemetry.Damped].
const statsNotWritten = "could not write the counts of ended jobs"

// keepStats writes the counts of finished jobs at the end of each minute of the database's clock until ctx ends. It retries counts that
// could not be written before. If the pod crashes, the current minute's counts are lost.
func (p *Pod) keepStats(ctx context.Context) {
	for next := true; next; {
		p.writeStats(ctx, false)
		now := p.Clock.Now()
		next = routine.Sleep(ctx, now.Truncate(time.Minute).Add(time.Minute).Sub(now))
	}
}

// writeLastStats writes the remaining counts when the pod stops. If the write fails, they are lost.
func (p *Pod) writeLastStats(ctx context.Context) {
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	p.writeStats(stopping, true)
}

func (p *Pod) writeStats(ctx context.Context, stopping bool) {
	rows := p.Ends.Stats.Rows(p.Clock.Now(), p.PodID(), stopping)
	if err := upkeep.AddStats(ctx, p.Slow, rows); err != nil {
		p.Damped.Warn(ctx, statsNotWritten, telemetry.Err, p.DBError(err))
		return
	}
	p.Ends.Stats.Written(len(rows))
	p.Damped.Over(ctx, statsNotWritten)
}
