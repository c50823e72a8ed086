package maintenance

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// MoveStranded requests that jobs in nonexistent lanes be moved immediately instead of within a minute. It is called after a lane has been
// deleted.
func (m *Maintenance) MoveStranded() { m.stranded.Set() }

// keepStranded moves jobs in nonexistent lanes on request, until ctx is cancelled.
func (m *Maintenance) keepStranded(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.stranded:
		}
		if _, err := m.moveStranded(ctx); err != nil && ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "could not move the jobs of a deleted lane, retrying with the next heartbeat", telemetry.Err, m.o.Count(err))
		}
	}
}

func (m *Maintenance) moveStranded(ctx context.Context) (int, error) {
	n, err := admin.MoveStranded(ctx, m.o.Store)
	if n > 0 {
		m.o.Log.WarnContext(ctx, "moved jobs of a lane that does not exist", "jobs", n, telemetry.Pod, m.o.Pod)
		m.o.Wake()
		m.o.WakePeers()
	}
	return n, err
}
