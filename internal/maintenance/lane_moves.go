package maintenance

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

const (
	// confirmFor limits how long the task waits, for each moving lane, until the pods have confirmed that they do not start jobs in it.
	confirmFor   = 10 * time.Second
	confirmEvery = 500 * time.Millisecond
)

// moveLanes completes moves of lanes to other engines that were begun by a command but not completed. It leaves lanes with running jobs to
// its next run.
func (m *Maintenance) moveLanes(ctx context.Context) (moved int, err error) {
	lanes, err := admin.LanesChangingEngine(ctx, m.o.Store)
	errs := []error{err}
	for _, lane := range lanes {
		for began := time.Now(); ; {
			at, err := admin.MoveOn(ctx, m.o.Store, lane, "system")
			if errs = append(errs, err); err != nil {
				break
			}
			if at.Next == "" {
				m.o.Log.InfoContext(ctx, "lane moved to another engine", telemetry.Lane, lane, "engine", at.Engine)
				moved++
				m.o.WakePeers()
				break
			}
			if at.Running > 0 || time.Since(began) > confirmFor {
				break
			}
			_ = m.o.Store.NotifySettings(ctx, m.o.Store.Pool()) // best effort: makes the pods send a heartbeat now
			if !routine.Sleep(ctx, confirmEvery) {
				return moved, ctx.Err()
			}
		}
	}
	return moved, errors.Join(errs...)
}
