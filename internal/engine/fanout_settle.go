package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// unsettled holds the ids of fan-outs that must be settled because jobs in them have ended in this process. After a heartbeat has reported
// unsettled fan-outs, it also requests a pass over all those listed in the database.
type unsettled struct {
	some routine.Signal // set when there may be fan-outs to settle

	mu  sync.Mutex
	ids []int64
	all bool
}

func (u *unsettled) add(ids ...int64) {
	u.mu.Lock()
	u.ids = append(u.ids, ids...)
	u.mu.Unlock()
	u.some.Set()
}

// CheckAll requests a pass over all fan-outs that the database lists as unsettled.
func (u *unsettled) CheckAll() {
	u.mu.Lock()
	u.all = true
	u.mu.Unlock()
	u.some.Set()
}

func (u *unsettled) take() (ids []int64, all bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	slices.Sort(u.ids) // a flush that finishes several branches of a fan-out adds the fan-out's id repeatedly
	ids, all = slices.Compact(u.ids), u.all
	u.ids, u.all = nil, false
	return ids, all
}

// fanOuts settles fan-outs. It finishes jobs whose branches have all ended, starts their next steps, and cancels the remaining branches of
// jobs that have already ended.
type fanOuts struct {
	*shared
	intake    *submitter
	Unsettled unsettled
}

// settleTries is the maximum number of attempts to settle a fan-out that keeps changing. After that, the fan-out has to wait until the next
// heartbeat reports it again.
const settleTries = 3

// settleAtOnce is the maximum number of unsettled fan-outs that a query reads.
const settleAtOnce = 100

// settleUntil settles fan-outs on request until ctx ends. After an error, it retries when the next heartbeat reports unsettled fan-outs.
func (f *fanOuts) settleUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.Unsettled.some:
		}
		ids, all := f.Unsettled.take()
		err := f.SettleFanOut(ctx, ids...)
		if all {
			err = errors.Join(err, f.SettleFanOuts(ctx))
		}
		if err != nil && ctx.Err() == nil {
			f.Log.WarnContext(ctx, "could not settle fan-outs, retrying with the next heartbeat", telemetry.Err, f.DBError(err))
		}
	}
}

// SettleFanOuts settles the fan-outs that the database lists as unsettled.
func (f *fanOuts) SettleFanOuts(ctx context.Context) error {
	ids, err := f.Commands.OffBalance(ctx, settleAtOnce)
	if err != nil {
		return err
	}
	return f.SettleFanOut(ctx, ids...)
}

// SettleFanOut settles the given fan-outs. It finishes jobs whose branches have all ended, and cancels the remaining branches of jobs that
// have already ended. It then settles the enclosing and nested fan-outs. It is idempotent, and several pods can run it concurrently.
func (f *fanOuts) SettleFanOut(ctx context.Context, ids ...int64) error {
	var errs []error
	for len(ids) > 0 {
		id := ids[0]
		ids = ids[1:]
		more, err := f.settleOne(ctx, id)
		if err != nil {
			errs = append(errs, fmt.Errorf("settle the fan-out of job %d: %w", id, err))
			continue
		}
		ids = append(ids, more...)
	}
	return errors.Join(errs...)
}

// settleOne settles one fan-out, and returns the fan-outs that must be settled next.
func (f *fanOuts) settleOne(ctx context.Context, id int64) (more []int64, err error) {
	for range settleTries {
		w, err := f.Store.Waiting(ctx, id)
		if err != nil {
			return nil, err
		}
		plan, err := work.DecodePlan(id, w.Plan)
		if err != nil {
			return nil, err
		}
		always := len(plan.Chain) > 0 && plan.Chain[0].When == job.Always
		waits := false
		if w.Waits && always && w.Open > 0 && w.Failed > 0 { // wait for branches that are being cancelled; parts have no jobs
			children, err := view.BranchStates(ctx, f.Store, w.PipelineID, id)
			if err != nil {
				return nil, err
			}
			waits = len(children) > 0
		}
		switch {
		case waits, !w.Waits && w.Open > 0:
			return f.CancelOpen(ctx, job.ReasonCancelled, "system", nil, false, func(ctx context.Context, limit int) ([]int64, error) {
				return admin.OpenBranches(ctx, f.Store, w.PipelineID, id, limit)
			}, nil)
		case w.Waits && (w.Open == 0 || w.FailFast && w.Failed > 0):
			if more, ended, err := f.endWaiting(ctx, w, plan, always); ended || err != nil {
				return more, err
			}
		default:
			return nil, nil
		}
	}
	return nil, nil
}

// endWaiting finishes a job that was waiting for its branches, and inserts its next step, which may start in this process. The ok result
// reports whether the job has ended.
func (f *fanOuts) endWaiting(ctx context.Context, w store.Waiting, plan work.Plan, always bool) (more []int64, ok bool, err error) {
	e := store.Ending{ID: w.ID, Fence: w.Fence, EventNo: w.EventNo, State: job.Succeeded, Outcome: w.Outcome, Reason: job.ReasonOK, Result: w.Result, Branch: w.Branch}
	if bad := w.Failed + w.Harmed; bad > 0 {
		e.Reason, e.Impaired = job.ReasonChildrenFailed, true
		e.Error = fmt.Sprintf("%d of %d children failed", w.Failed, w.Branches)
		if w.Harmed > 0 {
			e.Error += fmt.Sprintf(" completely, %d in part", w.Harmed)
		}
		if e.Outcome = job.Warning; !always && (w.Failed == w.Branches || w.Failed > 0 && w.FailFast) {
			e.State, e.Outcome, e.Class, e.Result = job.Failed, job.Error, job.ClassChildrenFailed, nil
		}
	}
	podID, reserved := f.PodID(), false
	if e.State == job.Succeeded {
		next, err := f.stepAfter(ctx, w, plan, e.Impaired)
		if err != nil {
			return nil, false, err
		}
		if e.Next = next; next != nil {
			podID, reserved = f.reserveFor(next.Kind, next.Lane, 0, next.Priority)
			next.Starts = reserved
			f.InFlight.Add(next.ID)
			defer func() { f.InFlight.Remove(next.ID) }()
		}
	}
	var ended store.EndedWaiting
	send := func() (err error) {
		ended, ok, err = f.Store.EndWaiting(ctx, podID, e)
		return err
	}
	if err = send(); e.Next != nil {
		err = f.intake.withFreeIDs(ctx, nil, []*store.NewJob{e.Next}, err, send)
	}
	if err == nil {
		err = failpoint.Hit(failpoint.WaitingEnded)
	}
	switch {
	case store.Unknown(err):
		ended, ok, err = f.readWaitingBack(ctx, podID, e, err)
	case store.Refused(err):
		// The next step cannot be stored, so fail the job.
		e.State, e.Outcome, e.Reason, e.Class = job.Failed, job.Error, job.ReasonUnstorable, job.ClassUnstorable
		e.Error = job.Storable("could not store the next step: "+err.Error(), 1000)
		next := e.Next
		e.Next = nil
		err = send()
		e.Next = next
	}
	if reserved && !(err == nil && ok && ended.Next == store.PlacedRunning && f.intake.start(podID, *e.Next)) {
		f.Lanes.Release(e.Next.Lane, 1)
	}
	if err != nil || !ok {
		return nil, false, err
	}
	if ended.Here {
		f.Ends.Report(nil, job.End{ID: w.ID, PipelineID: w.PipelineID, Kind: w.Kind, Lane: w.Lane, Subject: w.Subject, Key: w.Key, Attempt: w.Attempt, State: e.State,
			Reason: e.Reason, Error: e.Error, ErrorClass: e.Class})
	}
	if e.State == job.Failed {
		f.Log.WarnContext(ctx, "job failed", telemetry.JobID, w.ID, telemetry.Kind, w.Kind, telemetry.Lane, w.Lane, telemetry.Pipeline, w.PipelineID,
			telemetry.Reason, e.Reason, telemetry.ErrorClass, e.Class, telemetry.Err, e.Error)
	}
	f.Waiters.Seen(w.ID)
	switch ended.Next {
	case store.PlacedPending:
		f.WakeDue() // after a lost reply, the step may be parked
		f.WakePeers()
		f.LinesChanged(e.Next.Lines()...) // after a lost reply, the step may wait in a line
	case store.PlacedWaiting, store.PlacedKeyed:
		f.LinesChanged(e.Next.Lines()...)
	case store.PlacedParked: // its lane is still to be made
		f.WakeAfter(time.Duration(e.Next.DelayMillis) * time.Millisecond)
	}
	if ended.OffBalance != nil {
		more = append(more, *ended.OffBalance)
	}
	if e.State == job.Failed {
		more = append(more, w.ID) // its open branches must be cancelled
	}
	return more, true, nil
}

// readWaitingBack finds out, after a lost reply, whether a waiting job was finished. If it was not, or the outcome remains unknown, the next
// heartbeat reports the job again.
func (f *fanOuts) readWaitingBack(ctx context.Context, podID string, e store.Ending, lost error) (ended store.EndedWaiting, ok bool, err error) {
	child := int64(0)
	if e.Next != nil {
		child = e.Next.ID
	}
	read := false
	err = f.untilKnown(ctx, lost, func(ctx context.Context) (bool, error) {
		found, err := f.Store.ClaimOutcomes(ctx, podID, []job.Lease{{JobID: e.ID, Fence: e.Fence, Pod: podID}}, []int64{child}, false)
		at := found[e.ID]
		read, ok = err == nil, at.State != nil
		ended = store.EndedWaiting{Here: at.ByFinish, OffBalance: e.Group} // checking a settled fan-out is cheap
		if at.NextRunning {
			ended.Next = store.PlacedRunning
		} else if e.Next != nil {
			ended.Next = store.PlacedPending
		}
		return ok, err
	}, nil, nil)
	if !ok {
		f.Unknown.Raise() // if the statement still commits, the next step may belong to this pod without its knowledge
	}
	if read {
		err = nil
	}
	return ended, ok, err
}

// stepAfter builds the row of the step that follows a waiting job. It returns nil if there is none.
func (f *fanOuts) stepAfter(ctx context.Context, w store.Waiting, plan work.Plan, impaired bool) (*store.NewJob, error) {
	if len(plan.Chain) == 0 {
		return nil, nil
	}
	s := plan.Chain[0]
	next := work.FromPlan(slices.Concat(plan.Chain, plan.Undo))
	next.MaxCrashes = f.intake.crashLimit(s.Kind)
	if next.Subject == nil {
		next.Subject = &w.Subject
	}
	if _, heard := f.Lanes.Lookup(s.Kind, ""); !heard && s.Lane == "" {
		found, err := view.LaneFor(ctx, f.Commands, nil, s.Kind, "", w.Lane)
		if err != nil {
			return nil, err
		}
		next.Lane = found.Lane
	}
	next.Lane = f.Lanes.LaneOfStep(s.Kind, next.Lane, w.Lane) // ask also for the parent's lane: it may have been deleted while the job waited
	if _, err := f.intake.LaneAsking(ctx, nil, next); errors.Is(err, job.ErrUnknownLane) {
		f.Log.WarnContext(ctx, "the lane of a join was deleted: using the parent's lane", telemetry.JobID, w.ID, telemetry.Lane, next.Lane)
		next.Lane = w.Lane
	} else if err != nil {
		return nil, err
	}
	if err := next.EncodePlan(); err != nil {
		return nil, err
	}
	ids, err := f.Store.NewIDs(ctx, 1)
	if err != nil {
		return nil, err
	}
	n := f.intake.follow(next, predecessor{id: w.ID, pipeline: w.PipelineID, step: w.Step, lane: w.Lane, priority: w.Priority, submitter: w.Submitter, key: w.Key, ordered: w.Ordered})
	n.ID, n.Branch, n.Actor = ids[0], w.Branch, "system"
	n.Impaired = n.Impaired || impaired
	return &n, nil
}

// CancelOpen cancels jobs in pages until open returns none. The open function lists jobs that have neither ended nor received a cancel
// request. If a handler's transaction has locked a job's row, CancelOpen cancels the handler. If wait is set, CancelOpen then waits for the
// row and cancels the job; otherwise, it leaves the job to the next call.
//
// CancelOpen calls the seen function with the id of each job that was cancelled or received a cancel request, and returns the fan-outs that
// must be settled next. The first statement also writes the audit entry d, unless d is nil.
func (f *fanOuts) CancelOpen(ctx context.Context, reason job.Reason, actor string, d *admin.AuditEntry, wait bool,
	open func(ctx context.Context, limit int) ([]int64, error), seen func(id int64)) (more []int64, err error) {
	if seen == nil {
		seen = func(int64) {}
	}
	for {
		ids, err := open(ctx, CancelPage)
		if err != nil || len(ids) == 0 {
			return more, err
		}
		cancelled := 0
		due, err := f.cancelUnlocked(ctx, f.Store, ids, reason, actor, d, func(id int64) {
			cancelled++
			seen(id)
		})
		if err != nil {
			return more, err
		}
		d = nil
		more = append(more, due...)
		if cancelled > 0 {
			continue
		}
		// Each of these jobs is either locked by another transaction or has changed since the read.
		for _, id := range ids {
			if !wait {
				if err := admin.NotifyHandler(ctx, f.Commands, id, f.CancelRun); err != nil {
					return more, err
				}
				continue
			}
			if done, err := f.cancelLocked(ctx, id, actor); err != nil {
				return more, err
			} else if done {
				seen(id)
			}
		}
		if !wait {
			f.WakePeers()
			return more, nil
		}
	}
}
