package engine

import (
	"github.com/trapeze-run/trapeze/internal/work"

	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// unbalanced are the fan-outs of which something is to be done: those that ends written here have left off balance, and, when a
// heartbeat told of some, whichever there are.
type unbalanced struct {
	some wait.Signal // a hint that there are any

	mu     sync.Mutex
	ids    []int64
	around bool
}

func (u *unbalanced) add(ids ...int64) {
	u.mu.Lock()
	u.ids = append(u.ids, ids...)
	u.mu.Unlock()
	u.hint()
}

func (u *unbalanced) CheckAll() {
	u.mu.Lock()
	u.around = true
	u.mu.Unlock()
	u.hint()
}

func (u *unbalanced) hint() {
	u.some.Set()
}

func (u *unbalanced) take() (ids []int64, around bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	slices.Sort(u.ids) // a flush that ends many branches of one names it as often
	ids, around = slices.Compact(u.ids), u.around
	u.ids, u.around = nil, false
	return ids, around
}

// balanceTries is how often a fan-out is read anew that has changed since it was read; after that, the next heartbeat tells of it.
const balanceTries = 3

// balanceAtOnce is how many fan-outs a look around sees.
const balanceAtOnce = 100

// keepBalance balances what is known to be off balance, until ctx ends. What cannot be done now is tried again when a heartbeat
// tells.
func (r *Engine) keepBalance(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Unbalanced.some:
		}
		ids, around := r.Unbalanced.take()
		err := r.SettleFanOut(ctx, ids...)
		if around {
			err = errors.Join(err, r.SettleFanOuts(ctx))
		}
		if err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "fan-outs could not be balanced, the next heartbeat tells again", telemetry.Err, r.DBError(err))
		}
	}
}

// balanceAround balances whichever fan-outs are off balance.
func (r *Engine) SettleFanOuts(ctx context.Context) error {
	ids, err := r.Commands.OffBalance(ctx, balanceAtOnce)
	if err != nil {
		return err
	}
	return r.SettleFanOut(ctx, ids...)
}

// balance does what fan-outs call for: it ends the jobs whose branches have ended, with the step that follows, and cancels the
// branches of those that have ended before; and so on with the fan-outs around them and in them. Safe to repeat, and for several
// pods at once.
func (r *Engine) SettleFanOut(ctx context.Context, ids ...int64) error {
	var errs []error
	for len(ids) > 0 {
		id := ids[0]
		ids = ids[1:]
		more, err := r.balanceOne(ctx, id)
		if err != nil {
			errs = append(errs, fmt.Errorf("balance the fan-out of job %d: %w", id, err))
			continue
		}
		ids = append(ids, more...)
	}
	return errors.Join(errs...)
}

// balanceOne balances one fan-out, and returns those that this leaves off balance.
func (r *Engine) balanceOne(ctx context.Context, id int64) (more []int64, err error) {
	for range balanceTries {
		w, err := r.Store.Waiting(ctx, id)
		if err != nil {
			return nil, err
		}
		switch {
		case w.Waits && (w.Open == 0 || w.FailFast && w.Failed > 0):
			if more, ended, err := r.endWaiting(ctx, w); ended || err != nil {
				return more, err
			}
		case !w.Waits && w.Open > 0:
			return r.CancelOpen(ctx, job.ReasonCancelled, "system", nil, false, func(ctx context.Context, limit int) ([]int64, error) {
				return admin.OpenBranches(ctx, r.Store, w.PipelineID, id, limit)
			}, nil)
		default:
			return nil, nil
		}
	}
	return nil, nil
}

// endWaiting ends a job that waited for its branches, inserts the step that follows, and performs it when it is ours. It reports whether
// the job has ended by that.
func (r *Engine) endWaiting(ctx context.Context, w store.Waiting) (more []int64, ok bool, err error) {
	e := store.Ending{ID: w.ID, Fence: w.Fence, EventNo: w.EventNo, State: job.Succeeded, Outcome: w.Outcome, Reason: job.ReasonOK, Result: w.Result, Branch: w.Branch}
	if bad := w.Failed + w.Harmed; bad > 0 {
		e.Reason, e.Impaired = job.ReasonChildrenFailed, true
		e.Error = fmt.Sprintf("%d of %d branches failed", w.Failed, w.Branches)
		if w.Harmed > 0 {
			e.Error += fmt.Sprintf(", %d in part", w.Harmed)
		}
		if e.Outcome = job.Warning; w.Failed == w.Branches || w.Failed > 0 && w.FailFast {
			e.State, e.Outcome, e.Class, e.Result = job.Failed, job.Error, job.ClassChildrenFailed, nil
		}
	}
	boot, reserved := r.Boot(), false
	if e.State == job.Succeeded {
		next, err := r.stepAfter(ctx, w, e.Impaired)
		if err != nil {
			return nil, false, err
		}
		if e.Next = next; next != nil {
			boot, reserved = r.reserveFor(next.Kind, next.Lane, 0)
			next.Starts = reserved
			r.flights.add(next.ID)
			defer func() { r.flights.remove(next.ID) }()
		}
	}
	ended, ok, err := r.Store.EndWaiting(ctx, boot, e)
	for try := 0; e.Next != nil && r.Store.IDTaken(err) && try < idTries; try++ {
		if err = r.renumber(ctx, e.Next); err == nil {
			ended, ok, err = r.Store.EndWaiting(ctx, boot, e)
		}
	}
	if err == nil {
		err = failpoint.Hit(failpoint.WaitingEnded)
	}
	switch {
	case store.Unknown(err):
		ended, ok, err = r.readWaitingBack(ctx, boot, e)
	case store.Refused(err):
		// The step that follows cannot be stored: that can.
		e.State, e.Outcome, e.Reason, e.Class = job.Failed, job.Error, job.ReasonUnstorable, job.ClassUnstorable
		e.Error = job.Storable("the step that follows could not be stored: "+err.Error(), 1000)
		next := e.Next
		e.Next = nil
		ended, ok, err = r.Store.EndWaiting(ctx, boot, e)
		e.Next = next
	}
	if reserved && !(err == nil && ok && ended.Next == store.PlacedRunning && r.launchBorn(boot, *e.Next)) {
		r.Lanes.Release(e.Next.Lane, 1)
	}
	if err != nil || !ok {
		return nil, false, err
	}
	if ended.Here {
		r.Count.Ends.Count(e.State, e.Class, w.Kind)
	}
	if e.State == job.Failed {
		r.Log.WarnContext(ctx, "job failed", telemetry.JobID, w.ID, telemetry.Kind, w.Kind, telemetry.Lane, w.Lane, telemetry.Pipeline, w.PipelineID,
			telemetry.Reason, e.Reason, telemetry.ErrorClass, e.Class, telemetry.Err, e.Error)
	}
	r.Waiters.Seen(w.ID)
	if ended.Next == store.PlacedPending {
		r.Wake()
		r.WakePeers()
	}
	if ended.OffBalance != nil {
		more = append(more, *ended.OffBalance)
	}
	if e.State == job.Failed {
		more = append(more, w.ID) // its open branches are to be cancelled
	}
	return more, true, nil
}

// readWaitingBack tells what became of the end of a waiting job whose reply was lost. When nobody knows yet, the next heartbeat tells.
func (r *Engine) readWaitingBack(ctx context.Context, boot string, e store.Ending) (ended store.EndedWaiting, ok bool, err error) {
	child := int64(0)
	if e.Next != nil {
		child = e.Next.ID
	}
	for backoff := wait.NewBackoff(); backoff.Wait(ctx); {
		found, err := r.Store.ClaimOutcomes(ctx, boot, []job.Lease{{JobID: e.ID, Fence: e.Fence, Pod: boot}}, []int64{child}, false)
		if err != nil {
			continue
		}
		at := found[e.ID]
		if at.State == nil {
			if e.Next != nil && e.Next.Starts {
				r.Doubt.Raise() // should the end be committed after all, its next step is ours and unknown here
			}
			return store.EndedWaiting{}, false, nil
		}
		ended.Here = at.ByFinish
		ended.OffBalance = e.Group // if it is not, a look at it costs little
		if ended.Next = store.PlacedPending; at.NextRunning {
			ended.Next = store.PlacedRunning
		}
		return ended, true, nil
	}
	r.Doubt.Raise()
	return store.EndedWaiting{}, false, context.Cause(ctx)
}

// stepAfter makes the row of the step that follows a job that waited: nil when there is none.
func (r *Engine) stepAfter(ctx context.Context, w store.Waiting, impaired bool) (*store.NewJob, error) {
	steps, err := work.DecodePlan(w.ID, w.Plan)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	s := steps[0]
	next := work.FromPlan(steps)
	next.MaxCrashes = r.crashLimit(s.Kind)
	if next.Subject == nil {
		next.Subject = &w.Subject
	}
	if _, heard, _ := r.Lanes.Lookup(s.Kind, ""); !heard && s.Lane == "" {
		lane, _, err := view.LaneFor(ctx, r.Commands, s.Kind, "", w.Lane)
		if err != nil {
			return nil, err
		}
		next.Lane = lane
	}
	if s.Lane != "" {
		if _, err := r.laneOf(ctx, s.Kind, s.Lane); errors.Is(err, job.ErrUnknownLane) {
			r.Log.WarnContext(ctx, "the lane of a join is gone: it goes where its parent was", telemetry.JobID, w.ID, telemetry.Lane, s.Lane)
			next.Lane = w.Lane
		} else if err != nil {
			return nil, err
		}
	}
	if err := next.EncodePlan(); err != nil {
		return nil, err
	}
	ids, err := r.Store.NewIDs(ctx, 1)
	if err != nil {
		return nil, err
	}
	n := r.follow(next, before{id: w.ID, pipeline: w.PipelineID, step: w.Step, lane: w.Lane, priority: w.Priority, submitter: w.Submitter})
	n.ID, n.Branch, n.Actor = ids[0], w.Branch, "system"
	n.Impaired = n.Impaired || impaired
	return &n, nil
}

// cancelPage is how many jobs one statement cancels.
const CancelPage = 1000

// cancelOpen cancels jobs, as long as open lists some that have neither ended nor been asked to. The handlers of those whose rows
// are held by their transactions are told; with wait their ends are waited for, one by one, without it they are left to the next
// look: whoever sweeps has other things to do. It tells seen of every job that it cancels or asks, and returns the fan-outs that this
// leaves off balance. The deed that this is, unless it is nil, is written down with the first of them.
func (r *Engine) CancelOpen(ctx context.Context, reason job.Reason, actor string, d *admin.Deed, wait bool,
	open func(ctx context.Context, limit int) ([]int64, error), seen func(ids ...int64)) (more []int64, err error) {
	if seen == nil {
		seen = func(...int64) {}
	}
	for {
		ids, err := open(ctx, CancelPage)
		if err != nil || len(ids) == 0 {
			return more, err
		}
		c, err := admin.CancelMany(ctx, r.Store, ids, reason, actor, d)
		if err != nil {
			return more, err
		}
		d = nil
		r.Count.Ends.Count(job.Cancelled, "", c.Kinds...)
		more = append(more, c.OffBalance...)
		seen(c.Ended...)
		for _, l := range c.Asked {
			seen(l.JobID)
			if one := r.Runs.Find(l.JobID, l.Fence); one != nil && one.Lease == l {
				r.cancelRun(one, job.ReasonCancelled)
			}
		}
		if len(c.Asked) > 0 {
			r.WakePeers()
		}
		if len(c.Ended)+len(c.Asked) > 0 {
			continue
		}
		// All are held by somebody, or have moved since.
		for _, id := range ids {
			if !wait {
				if err := admin.Tell(ctx, r.Commands, id, r.TellRun); err != nil {
					return more, err
				}
				continue
			}
			if err := r.CancelAmong(ctx, id, actor); err == nil {
				seen(id)
			} else if !errors.Is(err, job.ErrAlreadyTerminal) && !errors.Is(err, job.ErrNotFound) {
				return more, err
			}
		}
		if !wait {
			r.WakePeers()
			return more, nil
		}
	}
}
