package runner

import (
	"context"
	"errors"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// reconcilePage is how many waiting jobs, and how many runs of subjects, one round of the reconciliation looks at or mends.
const reconcilePage = 100

// reconcile compares what is counted or noted twice with the rows that it is of, mends it, and reports what it had to mend: nothing,
// unless rows were changed by hand. The status of a pipeline is none of it, for it is that of its last job.
func (r *Runner) reconcile(ctx context.Context) (mended int, err error) {
	fans, err := r.reconcileFanOuts(ctx)
	runs, err2 := r.reconcileRuns(ctx)
	lanes, err3 := r.reconcileGrants(ctx)
	return fans + runs + lanes, errors.Join(err, err2, err3)
}

// reconcileFanOuts counts the branches of waiting jobs anew, a page of them each round.
func (r *Runner) reconcileFanOuts(ctx context.Context) (corrected int, err error) {
	last, drifts, err := r.front.Reconcile(ctx, r.reconciled.Load(), reconcilePage)
	for _, d := range drifts {
		r.metrics.Drift.Inc()
		r.log.ErrorContext(ctx, "the branches of a waiting job were counted wrong, and are corrected: were rows changed by hand?",
			telemetry.JobID, d.ID, telemetry.OpenBefore, d.OpenBefore, telemetry.Open, d.Open, telemetry.FailedBefore, d.FailedBefore, telemetry.Failed, d.Failed)
	}
	r.reconciled.Store(last)
	if len(drifts) > 0 {
		r.unbalanced.lookAround()
	}
	return len(drifts), err
}

// reconcileRuns frees the subjects that a run holds of which there is no job.
func (r *Runner) reconcileRuns(ctx context.Context) (int, error) {
	ended, err := r.front.ReconcileRuns(ctx, reconcilePage)
	for _, run := range ended {
		r.log.ErrorContext(ctx, "a subject was held by a job that does not run, and is free: were rows changed by hand?",
			telemetry.JobID, run.JobID, telemetry.Kind, run.Kind)
	}
	if len(ended) > 0 {
		r.wake()
		r.wakePeers()
	}
	return len(ended), err
}

// reconcileGrants sums up the granted slots of lanes anew, and takes back those of pods that are gone.
func (r *Runner) reconcileGrants(ctx context.Context) (int, error) {
	lanes, err := r.front.ReconcileGrants(ctx)
	for _, lane := range lanes {
		r.log.ErrorContext(ctx, "the granted slots of a lane were wrong, and are corrected: were rows changed by hand?", telemetry.Lane, lane)
	}
	if len(lanes) > 0 {
		r.wakePeers()
	}
	return len(lanes), err
}
