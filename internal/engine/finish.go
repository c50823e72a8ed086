package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// finisher writes the outcome of a claim (an end, a wait or a hand-back) and hands over to the next step.
type finisher struct {
	*Identity
	newRun  func(c store.Claimed, boot string) *Run // of a next step that has started here; nil when the engine has stopped
	pass    func(one *Run) *Run                     // gives its slot to another claim
	intake  *submitter
	fanOuts *fanOuts
	leases  *leaseTx
	flusher *flusher
	groups  *groups
}

// flushOf prepares the end of a claim and its hand-off to the next step.
func (fin *finisher) flushOf(one *Run, e store.Ending, next *store.NewJob) *flush {
	if one.Claimed.Ahead {
		e.Started = &one.Claimed.ClaimedAt
	}
	e.ID, e.Fence, e.Next, e.Branch, e.Undo = one.Lease.JobID, one.Lease.Fence, next, one.Claimed.Branch, one.undo
	if next != nil {
		next.Starts = fin.mayStart(one, next)
		fin.inFlight.add(next.ID)
	}
	return &flush{one: one, ending: e, next: next}
}

// keepUndo stores the steps that follow the run's failure from now on, when its handler has succeeded. It returns a permanent error if one
// of them is rejected.
func (fin *finisher) keepUndo(one *Run, undo []work.Step) (err error) {
	if err = fin.intake.CheckSteps(undo, false); err == nil {
		one.undo, err = work.EncodePlan(one.Claimed.Kind, undo)
	}
	return job.Permanent(err)
}

// finishSoon has the end of a handler that succeeded written by the next group commit, with the next step and the statements that it
// queued. It returns the run that has the slot now, if no step follows, or an error when the step is refused.
func (fin *finisher) finishSoon(one *Run, o *work.Outcome) (other *Run, err error) {
	e, next, err := fin.succeeded(one, o)
	if err != nil {
		return nil, err
	}
	w := fin.flushOf(one, e, next)
	if next == nil {
		other = fin.pass(one)
	}
	if w.writes = o.Writes; len(w.writes) > 0 {
		fin.groups.put(w)
	} else {
		fin.flusher.put(w)
	}
	return other, nil
}

// finish writes the end of a claim by group commit and hands over to the next step. It returns the next step if that has already started
// here.
func (fin *finisher) finish(one *Run, e store.Ending, next *store.NewJob) *Run {
	w := fin.flushOf(one, e, next)
	w.ended, w.err = fin.flusher.writeEnd(one, w.ending)
	return fin.pursue(w)
}

// pursue retries until a claim has ended whose end could not be written at first. It returns the next step if that has already started
// here.
func (fin *finisher) pursue(w *flush) *Run {
	one, e, next, ended, err := w.one, w.ending, w.next, w.ended, w.err
	if child := next; child != nil {
		defer func() { fin.inFlight.remove(child.ID) }()
	}
	for try := 0; next != nil && fin.Store.IDTaken(err) && try < idTries; try++ {
		if err = fin.renumberNext(one, next); err == nil {
			ended, err = fin.flusher.writeEnd(one, e)
		}
	}
	if err != nil && store.Refused(err) {
		// The handler's return cannot be stored: record that as a failure.
		fin.undoStart(one, next)
		fin.Log.ErrorContext(one.Ctx, "could not store the result", append(one.attrs(), telemetry.Err, err)...)
		e = store.Ending{ID: e.ID, Fence: e.Fence, Branch: e.Branch, Undo: e.Undo, State: job.Failed, Outcome: job.Error, Reason: job.ReasonUnstorable, Class: job.ClassUnstorable,
			Error: job.Storable("could not store the handler's outcome: "+err.Error(), 1000)}
		next = nil
		ended, err = fin.flusher.writeEnd(one, e)
	}
	// The cause is neither the connection nor the payload: a partition is missing, or a privilege was revoked. An operator has to fix it.
	// Until then the job has not ended, and keeps its slot.
	for backoff := wait.NewBackoff(); err != nil && !errors.Is(err, job.ErrLeaseLost) && !one.IsLost(); {
		fin.Log.ErrorContext(one.Ctx, "could not write the end of a job", append(one.attrs(), telemetry.Err, err)...)
		if !backoff.Wait(fin.leases.alive) {
			break
		}
		ended, err = fin.flusher.writeEnd(one, e)
	}
	return fin.finished(one, next, e, ended, err)
}

// finished applies an end that was written, as ended reports, or rejected, and makes the claim of the next step.
func (fin *finisher) finished(one *Run, next *store.NewJob, e store.Ending, ended store.Ended, err error) *Run {
	if err != nil {
		fin.undoStart(one, next)
		if errors.Is(err, job.ErrLeaseLost) {
			fin.stale(one, e.Error, err)
		} else {
			// The pod is stopping and the database does not answer: the lease expires, and another pod recovers the job.
			fin.Log.ErrorContext(one.Ctx, "end of a job was not written", append(one.attrs(), telemetry.Err, err)...)
		}
		return nil
	}
	_ = failpoint.Hit(failpoint.FinishCommitted)
	// If the job was cancelled instead, its row had a cancel, or a command had stopped it. If it had already ended, it may have ended
	// differently: callers must read its row.
	one.Wrote.Store(!ended.Found && (ended.State == e.State || ended.State != job.Cancelled))
	committed := time.Now()
	if !ended.Found || ended.Here {
		fin.reportEnd(one, e, ended.State)
	}
	one.span.State(ended.State)
	fin.logEnd(one, e, ended.State)
	if fin.freeSubject(one) {
		fin.Poller.Wake()
	}
	if ended.OffBalance != nil {
		fin.fanOuts.Unsettled.add(*ended.OffBalance)
	}
	if next == nil {
		return nil
	}
	var child *Run
	if ended.ChildRunning {
		if child = fin.newRun(startedOnInsert(*next, committed), one.Lease.Pod); child == nil {
			fin.Unknown.Raise() // stopping: the table assigns the row to us, and it is unknown here
		}
	}
	if next.Starts {
		fin.Lanes.Stepped(one.Claimed.Lane, next.Lane, child != nil)
		if child != nil && next.Lane != one.Claimed.Lane {
			fin.slotFree(one.Claimed.Lane)
		}
	}
	if !ended.ChildRunning {
		if ended.State == job.Succeeded {
			if next.DelayMillis > 0 {
				fin.wakeAfter(time.Duration(next.DelayMillis) * time.Millisecond)
			} else {
				fin.wakeAll()
			}
		}
		return nil
	}
	if child != nil {
		child.handed = committed
	}
	return child
}

// reportEnd reports the end of a run. The state may differ from the handler's: a cancel that was committed first overrides the handler's
// reason.
func (fin *finisher) reportEnd(one *Run, e store.Ending, state job.State) {
	if state == job.Cancelled {
		e.Reason = job.ReasonCancelled
	}
	fin.Ends.Report(one.handler.Ends, endOf(one, e, state))
}

// endOf describes the end of a run or, if the state is pending, of a try that another one follows.
func endOf(one *Run, e store.Ending, state job.State) job.End {
	c := &one.Claimed
	end := job.End{ID: c.ID, PipelineID: c.PipelineID, Kind: c.Kind, Lane: c.Lane, Subject: c.Subject, Attempt: c.Attempt, State: state,
		Reason: e.Reason, Error: e.Error}
	if state == job.Failed || state == job.Pending {
		end.ErrorClass, end.ErrorCode = e.Class, e.Code
	}
	return end
}

// undoStart reverts the preparations of mayStart.
func (fin *finisher) undoStart(one *Run, next *store.NewJob) {
	if next != nil && next.Starts {
		fin.Lanes.Stepped(one.Claimed.Lane, next.Lane, false)
	}
}

// logEnd logs how a job ended; for a failure with the error, which includes the stack of a panic. A cancel that was committed first
// overrides the handler's reason.
func (fin *finisher) logEnd(one *Run, e store.Ending, state job.State) {
	switch {
	case state == job.Failed:
		fin.Log.WarnContext(one.Ctx, "job failed", append(one.attrs(), telemetry.Reason, e.Reason, telemetry.ErrorClass, e.Class,
			telemetry.ErrorCode, e.Code, telemetry.Err, e.Error)...)
	case state == job.Cancelled:
		fin.Log.WarnContext(one.Ctx, "job cancelled", append(one.attrs(), telemetry.Reason, job.ReasonCancelled)...)
	case fin.Log.Enabled(one.Ctx, slog.LevelDebug):
		fin.Log.DebugContext(one.Ctx, "job succeeded", one.attrs()...)
	}
}

// stale records that a result was discarded, because its job runs elsewhere, has ended, or was deleted. failure is the handler's error,
// empty if it had succeeded.
func (fin *finisher) stale(one *Run, failure string, why error) {
	fin.Metrics.StaleWrites.Inc()
	if errors.Is(why, job.ErrGone) {
		one.lose(job.ErrGone)
		one.span.Error("gone", job.ErrGone)
		fin.Log.WarnContext(one.Ctx, "result discarded: the job has been deleted", append(one.attrs(), telemetry.Reason, "gone")...)
		return
	}
	one.span.Error("lease_lost", job.ErrLeaseLost)
	what := "succeeded"
	if failure != "" {
		what = job.Storable("failed: "+failure, 200)
	}
	fin.Log.WarnContext(one.Ctx, "result discarded: the lease was lost", append(one.attrs(), telemetry.Result, what)...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(one.Ctx), 2*time.Second)
	defer cancel()
	_ = fin.Commands.StaleResult(ctx, one.Lease, what) // best effort
}
