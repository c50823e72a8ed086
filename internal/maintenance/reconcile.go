package maintenance

import (
	"context"
	"errors"

	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// reconcilePage is the number of waiting jobs, and of held subjects, that a single reconciliation covers.
const reconcilePage = 100

// reconcile compares counts and other derived values with the rows that they summarize, and returns the number of corrections. None should
// be necessary unless rows were changed manually.
func (m *Maintenance) reconcile(ctx context.Context) (mended int, err error) {
	fans, err := m.reconcileFanOuts(ctx)
	runs, err2 := m.reconcileRuns(ctx)
	lanes, err3 := m.reconcileGrants(ctx)
	return fans + runs + lanes, errors.Join(err, err2, err3)
}

// reconcileFanOuts recounts the children for a page of waiting jobs.
func (m *Maintenance) reconcileFanOuts(ctx context.Context) (corrected int, err error) {
	last, drifts, err := upkeep.Reconcile(ctx, m.o.Store, m.reconciled.Load(), reconcilePage)
	for _, d := range drifts {
		m.o.Metrics.Drift.Inc()
		m.o.Log.ErrorContext(ctx, "corrected the child count of a waiting job: rows were probably changed by hand",
			telemetry.JobID, d.ID, telemetry.OpenBefore, d.OpenBefore, telemetry.Open, d.Open, telemetry.FailedBefore, d.FailedBefore, telemetry.Failed, d.Failed)
	}
	m.reconciled.Store(last)
	if len(drifts) > 0 {
		m.o.FanOutsChanged()
	}
	return len(drifts), err
}

// reconcileRuns frees subjects that are held for jobs that are not running.
func (m *Maintenance) reconcileRuns(ctx context.Context) (int, error) {
	ended, err := upkeep.ReconcileRuns(ctx, m.o.Store, reconcilePage)
	for _, run := range ended {
		m.o.Log.ErrorContext(ctx, "released a subject held by a job that does not run: rows were probably changed by hand",
			telemetry.JobID, run.JobID, telemetry.Kind, run.Kind)
		m.o.SubjectChanged(run.Kind, run.Subject)
	}
	return len(ended), err
}

// reconcileGrants recalculates the granted slots of lanes, and revokes the grants of pods that are gone.
func (m *Maintenance) reconcileGrants(ctx context.Context) (int, error) {
	lanes, err := upkeep.ReconcileGrants(ctx, m.o.Store)
	for _, lane := range lanes {
		m.o.Log.ErrorContext(ctx, "corrected the granted slots of a lane: rows were probably changed by hand", telemetry.Lane, lane)
	}
	if len(lanes) > 0 {
		m.o.WakePeers()
	}
	return len(lanes), err
}
