package maintenance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
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
	ended, err := upkeep.ReconcileGuards(ctx, m.o.Store, reconcilePage)
	for _, run := range ended {
		m.o.Log.ErrorContext(ctx, "released a subject held by a job that does not run: rows were probably changed by hand",
			telemetry.JobID, run.JobID, telemetry.Kind, run.Kind)
		m.o.LinesChanged(store.Line{Kind: run.Kind, Subject: run.Subject})
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

// strayFor is the maximum time for which a pipeline is kept after its last job was removed by something other than this pod's retention,
// such as an operator or a former leader.
const strayFor = 24 * time.Hour

// pruned tracks whether pipelines may have lost their last jobs since the last complete read of the pipelines. A complete read of tens of
// millions of pipelines takes minutes, and finds nothing unless retention has removed jobs.
type pruned struct {
	batches atomic.Int64              // number of retention runs that removed jobs
	seen    atomic.Int64              // value of batches when the last complete read started
	read    atomic.Pointer[time.Time] // when that read started; nil if never
}

// prunePipelines removes pipelines without jobs, if there may be any. After an interruption, the next run starts over.
func (m *Maintenance) prunePipelines(ctx context.Context, pace upkeep.Pace) (int, error) {
	p, now := &m.pruned, time.Now()
	batches, read := p.batches.Load(), p.read.Load()
	if read != nil && batches == p.seen.Load() && now.Sub(*read) < strayFor {
		return 0, nil
	}
	n, err := upkeep.PrunePipelines(ctx, m.o.Store, keepPipelines, pace)
	if err == nil {
		p.seen.Store(batches)
		p.read.Store(&now)
	}
	return n, err
}

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
	n, made, err := admin.MoveStranded(ctx, m.o.Store)
	if n > 0 {
		m.o.Log.WarnContext(ctx, "moved jobs of a lane that does not exist", "jobs", n, telemetry.Pod, m.o.Pod)
		m.o.Wake()
		m.o.WakePeers()
	}
	if made > 0 { // they were deleted while a transaction with their jobs was open
		_ = m.o.Store.NotifySettings(ctx, m.o.Store.Pool()) // best effort: makes the pods send a heartbeat now
	}
	return n + made, err
}

// keepLanes is the time for which a lane that was made from a template is kept after maintenance has found it without due jobs. A pod whose lease is shorter
// has read the mark by then. For jobs that others submit afterwards, moveStranded makes the lane again.
const keepLanes = 5 * time.Minute

// followTemplates deletes idle lanes that were made from a template, and corrects those that differ from their template.
func (m *Maintenance) followTemplates(ctx context.Context) (int, error) {
	return admin.FollowTemplates(ctx, m.o.Store, keepLanes)
}

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
			at, err := admin.ContinueLaneMove(ctx, m.o.Store, lane, "system")
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
