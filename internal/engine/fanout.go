package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// fanOut makes a job wait for its branches. A separate transaction contains the fence check, any writes by the handler, the children and
// the job's new state. Once it has been committed, the slot is free, and the children are claimed like any other jobs. If the handler
// writes or a child has a unique key, fanOut uses the host's pool, because the transaction may have to wait for one of the host
// application's transactions and must not block a connection that claims and finishes jobs.
func (x *executor) fanOut(run *Run, o *work.Outcome) (*Run, error) {
	f, wait, err := x.branchesOf(run, o)
	if err != nil {
		return nil, job.Permanent(err)
	}
	pool := x.Store.Pool()
	if len(o.Writes) > 0 || slices.ContainsFunc(f.Children, func(n store.NewJob) bool { return n.UniqueKey != nil }) {
		pool = x.Pool
	}
	var empty bool
	write := func() error {
		return x.leases.run(run.Ctx, run, pool, func(ctx context.Context, tx pgx.Tx) error {
			if len(o.Writes) == 0 {
				return nil
			}
			return x.callWrite(ctx, run, tx, o.Writes)
		}, end{before: func(ctx context.Context, tx pgx.Tx) (err error) {
			if empty, err = x.Store.FanOut(ctx, tx, f); err != nil {
				return err
			}
			return failpoint.Hit(failpoint.InTxCommit)
		}, committed: func(ctx context.Context) (bool, error) {
			c, err := x.Store.ClaimOutcome(ctx, run.Lease)
			return c.FannedOut, err
		}})
	}
	err = x.withFreeIDs(run, write(), each(f.Children), write)
	if errors.Is(err, store.ErrNoToken) {
		return nil, &heldError{store.ErrNoToken}
	}
	if err != nil {
		if store.Refused(err) {
			err = job.Permanent(err)
		}
		return x.concludeHeld(run, err)
	}
	run.Wrote.Store(true)
	run.span.State(job.Waiting)
	x.Log.DebugContext(run.Ctx, "job waits for its children", append(run.attrs(), telemetry.Branches, len(f.Children)+f.Parts)...)
	x.LinesChanged(run.Claimed.Lines()...)
	if empty {
		x.fanOuts.Unsettled.add(run.Lease.JobID)
	}
	if wait > 0 {
		x.WakeAfter(wait)
	}
	x.WakeDue() // children with a subject or key are parked as due
	x.WakePeers()
	return nil, nil
}

// branchesOf builds a fan-out's rows. The wait result is the time until the first delayed child becomes due, or 0 if no child is delayed.
func (x *executor) branchesOf(run *Run, o *work.Outcome) (f store.FanOut, wait time.Duration, err error) {
	c, fan := run.Claimed, o.Fan
	f = store.FanOut{Lease: run.Lease, Started: run.started(), Parts: fan.Parts, FailFast: fan.FailFast, Outcome: o.Status, Result: o.Result}
	fail := func(err error) (store.FanOut, time.Duration, error) { return store.FanOut{}, 0, err }
	switch n := len(fan.Children) + fan.Parts; {
	case n > x.Opts.MaxFanOut:
		return fail(fmt.Errorf("%w: fan-out of %d children, at most %d", job.ErrTooLarge, n, x.Opts.MaxFanOut))
	case c.Step+1 > job.MaxChainSteps:
		return fail(fmt.Errorf("%w: fan-out at step %d of at most %d", job.ErrTooLarge, c.Step, job.MaxChainSteps))
	}
	planned, err := run.plannedSteps()
	if err != nil {
		return fail(err)
	}
	if f.Plan, err = x.planAfter(run, planned, o); err != nil {
		return fail(err)
	}
	if c.Step == 0 && len(planned.Chain) == 0 {
		f.Pipeline = new(string)
	}
	ids, err := x.newIDs(run, len(fan.Children))
	if err != nil {
		return fail(err)
	}
	from := predecessor{id: c.ID, pipeline: c.PipelineID, step: c.Step, lane: c.Lane, priority: run.nextPriority(), submitter: c.Submitter, key: c.Key, ordered: c.Ordered}
	for i, w := range fan.Children {
		if err := x.intake.CheckFollowing("child", w); err != nil {
			return fail(fmt.Errorf("child %d: %w", i+1, err))
		}
		if err := x.checkLane(run, w); err != nil {
			return fail(fmt.Errorf("child %s: %w", w.Kind, err))
		}
		n := x.intake.follow(w, from)
		no := int32(i + 1)
		n.ID, n.Branch = ids[i], store.Branch{Group: &c.ID, No: &no}
		n.Trace = x.Tracing.Child(run.Ctx, run.span, &n)
		if w.Delay > 0 && (wait == 0 || w.Delay < wait) {
			wait = w.Delay
		}
		f.Children = append(f.Children, n)
	}
	return f, wait, nil
}

// planAfter encodes the new plan of a job that fans out: the steps that run on failure, the join, and the rest of the old plan.
func (x *executor) planAfter(run *Run, planned work.Plan, o *work.Outcome) (json.RawMessage, error) {
	join := o.Fan.Join
	if err := x.intake.CheckSteps(join, false); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	for _, s := range join {
		if err := x.checkLane(run, &work.Submission{Kind: s.Kind, Lane: s.Lane}); err != nil {
			return nil, fmt.Errorf("join %s: %w", s.Kind, err)
		}
	}
	work.MarkEmitted(join)
	chain, undo := planned.FollowedBy(o)
	steps := slices.Concat(planned.Own, join, chain, undo)
	if len(steps) == 0 && run.Claimed.Planned != nil {
		return json.RawMessage("[]"), nil // the planned steps are dropped
	}
	return work.EncodePlan(run.Claimed.Kind, steps)
}

// branchPage is the number of branches read per page.
const branchPage = 500

// Branches yields the outcomes of a fan-out's branches, reading them in pages.
func (s *shared) Branches(ctx context.Context, id int64) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) {
		w, err := s.Commands.Waiting(ctx, id)
		if err != nil {
			yield(job.Branch{}, err)
			return
		}
		after, part := 0, ""
		for _, read := range []func() ([]view.BranchEnd, error){
			func() ([]view.BranchEnd, error) {
				return view.Branches(ctx, s.Commands, w.PipelineID, id, after, branchPage)
			},
			func() ([]view.BranchEnd, error) { return admin.Parts(ctx, s.Commands, id, part, branchPage) },
		} {
			for more := true; more; {
				page, err := read()
				if err != nil {
					yield(job.Branch{}, s.DBError(err))
					return
				}
				for _, b := range page {
					if !yield(branchOf(b), nil) {
						return
					}
					after, part = b.No, b.Part
				}
				more = len(page) == branchPage
			}
		}
	}
}

func branchOf(b view.BranchEnd) job.Branch {
	branch := job.Branch{No: b.No, JobID: b.ID, Kind: b.Kind, Subject: b.Subject, Part: b.Part, State: b.State, JSON: b.Result}
	if b.Outcome != nil {
		branch.Outcome = *b.Outcome
	}
	if b.Reason != nil {
		branch.Reason = *b.Reason
	}
	if b.Error != nil {
		branch.Error = *b.Error
	}
	return branch
}
