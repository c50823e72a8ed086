package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// flushOf prepares a run's completion and the hand-off to the next step.
func (x *executor) flushOf(run *Run, e store.Ending, next *store.NewJob) *flush {
	if run.Claimed.Ahead {
		e.Started = &run.Claimed.ClaimedAt
	}
	e.ID, e.Fence, e.Next, e.Branch, e.Undo, e.InLine = run.Lease.JobID, run.Lease.Fence, next, run.Claimed.Branch, run.undo, len(run.Claimed.Lines()) > 0
	if next != nil {
		next.Starts = x.mayStart(run, next)
		x.InFlight.Add(next.ID)
	}
	return &flush{run: run, ending: e, next: next}
}

// mayStart reports whether the next step may start on insert in this process, and prepares its lane. The database then checks that no more
// urgent job is waiting in the table and that the subject is free.
func (i *shared) mayStart(run *Run, next *store.NewJob) bool {
	return next.DelayMillis == 0 && !i.Closing.Load() && i.Handled[next.Kind] && i.Lease.Trusted() &&
		i.Lease.ID() == run.Lease.Pod && !i.Ahead.MoreUrgent(next.Lane, next.Priority) && i.Lanes.Step(run.Claimed.Lane, next.Lane)
}

// keepUndo stores in the run the failure steps that a successful handler returned, which replace the job's own. It returns a permanent
// error if a step is invalid.
func (x *executor) keepUndo(run *Run, undo []work.Step) (err error) {
	if err = x.intake.CheckSteps(undo, false); err == nil {
		run.undo, err = work.EncodePlan(run.Claimed.Kind, undo)
	}
	return job.Permanent(err)
}

// finishSucceeded queues a successful outcome for the next group commit, together with the next step and the statements that the handler
// queued. If there is no next step, it returns the run that took over the slot. Writes that cannot share a commit end the run at once in a
// separate transaction; see finishAlone. It returns an error if the next step is invalid.
func (x *executor) finishSucceeded(run *Run, o *work.Outcome) (other *Run, queued bool, err error) {
	e, next, err := x.succeeded(run, o)
	if err != nil {
		return nil, false, err
	}
	w := x.flushOf(run, e, next)
	w.writes = o.Writes
	to := x.flusher
	if len(w.writes) > 0 {
		if to = x.groups.flusher; !x.groups.takes(run.Claimed.Kind, w.writes) {
			other, err = x.finishAlone(w)
			return other, false, err
		}
	}
	if next == nil {
		other = x.passSlot(run)
	}
	to.put(w)
	return other, true, nil
}

// finish writes, by group commit, the outcome of a run that has no next step.
func (x *executor) finish(run *Run, e store.Ending) {
	w := x.flushOf(run, e, nil)
	w.ended, w.err = x.flusher.writeEnd(run, w.ending)
	x.concludeFlush(w)
}

// afterFlush continues after completions for which no caller is waiting. It runs on the flusher's goroutine, so it moves work that may take
// time to separate goroutines. It frees all other slots together so that a single claim can fill them.
func (x *executor) afterFlush(ends []*flush) {
	var lanes []string
	for _, w := range ends {
		quick := w.err == nil && w.ended.State == job.Succeeded && (w.next == nil || w.ended.ChildRunning) &&
			!x.Log.Enabled(w.run.Ctx, slog.LevelDebug)
		if !quick {
			go func() {
				if x.goOn(w) {
					x.slotFree(w.run.Claimed.Lane)
				}
			}()
		} else if lane := w.run.Claimed.Lane; x.goOn(w) && !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	for _, lane := range lanes {
		x.slotFree(lane)
	}
}

// goOn closes a completion's run, even if the completion could not be written, and starts the next step. It reports whether the slot has
// become free.
func (x *executor) goOn(w *flush) bool {
	var next *Run
	if len(w.writes) == 0 {
		next = x.concludeFlush(w)
	} else {
		var err error
		next, err = x.finishGrouped(w)
		next = x.concludeWritten(w.run, next, err, context.Cause(w.run.Ctx))
	}
	free := x.close(w.run, next)
	if next != nil {
		x.workers.Give(next)
	}
	return free
}

// concludeFlush continues after an attempt to write an outcome, and retries it if it failed. It returns the run of the next step if that
// step has started in this process.
func (x *executor) concludeFlush(w *flush) *Run {
	run, e, next, ended, err := w.run, w.ending, w.next, w.ended, w.err
	if child := next; child != nil {
		defer func() { x.InFlight.Remove(child.ID) }()
	}
	write := func() error {
		ended, err = x.flusher.writeEnd(run, e)
		return err
	}
	if next != nil {
		err = x.withFreeIDs(run, err, []*store.NewJob{next}, write)
	}
	if store.Untranslatable(err) && e.Error != "" {
		e.Error = store.ASCII(e.Error, job.MaxErrorBytes)
		_ = write()
	}
	if err != nil && store.Refused(err) {
		// The handler's outcome cannot be stored, so fail the job.
		x.undoStart(run, next)
		x.Log.ErrorContext(run.Ctx, "could not store the result", append(run.attrs(), telemetry.Err, err)...)
		e = store.Ending{ID: e.ID, Fence: e.Fence, Branch: e.Branch, Undo: e.Undo, InLine: e.InLine, State: job.Failed, Outcome: job.Error, Reason: job.ReasonUnstorable, Class: job.ClassUnstorable,
			Error: job.Storable("could not store the handler's outcome: "+err.Error(), 1000)}
		next = nil
		_ = write()
	}
	// The error comes neither from the connection nor from the data. An operator may have to fix the cause, such as a revoked
	// privilege. Until then, the job stays running and keeps its slot.
	for backoff := routine.NewBackoff(); err != nil && !errors.Is(err, job.ErrLeaseLost) && !run.IsLost(); {
		x.Log.ErrorContext(run.Ctx, "could not write the outcome of a job", append(run.attrs(), telemetry.Err, err)...)
		if !backoff.Wait(x.leases.alive) {
			break
		}
		_ = write()
	}
	return x.finished(run, next, e, ended, err)
}

// finished continues after an outcome was written or rejected. It returns the run of the next step if that step has started in this
// process.
func (x *executor) finished(run *Run, next *store.NewJob, e store.Ending, ended store.Ended, err error) *Run {
	if err != nil {
		x.undoStart(run, next)
		if errors.Is(err, job.ErrLeaseLost) {
			x.stale(run, e.Error, err)
		} else {
			// The pod is stopping and the database does not respond. The lease will expire, and another pod will recover the job.
			x.Log.ErrorContext(run.Ctx, "outcome of a job was not written", append(run.attrs(), telemetry.Err, err)...)
		}
		return nil
	}
	_ = failpoint.Hit(failpoint.FinishCommitted)
	// A job that was cancelled instead either received a cancel request first or was stopped by a command. A job that had already ended may
	// have a different outcome, so callers must read its row.
	run.Wrote.Store(!ended.EndedBefore && (ended.State == e.State || ended.State != job.Cancelled))
	committed := time.Now()
	if !ended.EndedBefore || ended.EndedHere {
		x.reportEnd(run, e, ended.State)
	}
	run.span.State(ended.State)
	x.logEnd(run, e, ended.State)
	x.Ended(ended, run.Claimed.Kind, run.Claimed.Subject, run.Claimed.Key)
	if ended.OffBalance != nil {
		x.fanOuts.Unsettled.add(*ended.OffBalance)
	}
	if next == nil {
		return nil
	}
	var child *Run
	if ended.ChildRunning {
		child = x.newStarted(*next, run.Lease.Pod, committed)
	}
	if next.Starts {
		x.Lanes.Stepped(run.Claimed.Lane, next.Lane, child != nil)
		if child != nil && next.Lane != run.Claimed.Lane {
			x.slotFree(run.Claimed.Lane)
		}
	}
	if !ended.ChildRunning && ended.State == job.Succeeded {
		x.LinesChanged(next.Lines()...) // the step may wait in a line
		if next.DelayMillis > 0 {
			x.WakeAfter(time.Duration(next.DelayMillis) * time.Millisecond)
		} else {
			x.WakeAll()
		}
	}
	return child
}

// reportEnd reports the end of a run. A cancel that was committed first overrides the handler's state and reason.
func (x *executor) reportEnd(run *Run, e store.Ending, state job.State) {
	if state == job.Cancelled {
		e.Reason = job.ReasonCancelled
	}
	x.Ends.ReportRun(run.handler.Ends, endOf(run, e, state), run.times())
}

// endOf describes the end of a run or, if the state is pending, of an attempt after which the job will be retried.
func endOf(run *Run, e store.Ending, state job.State) job.End {
	c := run.Claimed
	end := job.End{ID: c.ID, PipelineID: c.PipelineID, Kind: c.Kind, Lane: c.Lane, Subject: c.Subject, Key: c.Key, Attempt: c.Attempt, State: state,
		Reason: e.Reason, Error: e.Error}
	if state == job.Failed || state == job.Pending {
		end.ErrorClass, end.ErrorCode = e.Class, e.Code
	}
	return end
}

// undoStart undoes mayStart's preparations in the lane.
func (x *executor) undoStart(run *Run, next *store.NewJob) {
	if next != nil && next.Starts {
		x.Lanes.Stepped(run.Claimed.Lane, next.Lane, false)
	}
}

// logEnd logs a job's outcome. For a failure, it includes the error and, after a panic, the stack trace. A cancel committed first overrides
// the handler's reason.
func (x *executor) logEnd(run *Run, e store.Ending, state job.State) {
	switch {
	case state == job.Failed:
		x.Log.WarnContext(run.Ctx, "job failed", append(run.attrs(), telemetry.Reason, e.Reason, telemetry.ErrorClass, e.Class,
			telemetry.ErrorCode, e.Code, telemetry.Err, e.Error)...)
	case state == job.Cancelled:
		x.Log.WarnContext(run.Ctx, "job cancelled", append(run.attrs(), telemetry.Reason, job.ReasonCancelled)...)
	case x.Log.Enabled(run.Ctx, slog.LevelDebug):
		x.Log.DebugContext(run.Ctx, "job succeeded", run.attrs()...)
	}
}

// stale records that a result was discarded because its job is running elsewhere, has ended, or was deleted. The failure argument is the
// handler's error, or empty if the handler succeeded.
func (x *executor) stale(run *Run, failure string, why error) {
	x.Metrics.StaleWrites.Inc()
	if errors.Is(why, job.ErrGone) {
		run.lose(job.ErrGone)
		run.span.Error("gone", job.ErrGone)
		x.Log.WarnContext(run.Ctx, "result discarded: the job has been deleted", append(run.attrs(), telemetry.Reason, "gone")...)
		return
	}
	run.span.Error("lease_lost", job.ErrLeaseLost)
	what := "succeeded"
	if failure != "" {
		what = job.Storable("failed: "+failure, 200)
	}
	x.Log.WarnContext(run.Ctx, "result discarded: the lease was lost", append(run.attrs(), telemetry.Result, what)...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run.Ctx), 2*time.Second)
	defer cancel()
	_ = x.Commands.StaleResult(ctx, run.Lease, what) // best effort
}
