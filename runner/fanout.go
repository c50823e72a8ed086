package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// fanOut parks a claim until its branches have ended, in a transaction of its own: fence, the handler's writes if it has some,
// children, and the job's new place are one commit. Afterwards the slot is free, and the children are claimed like any others. Its
// connection is the host's also when it takes unique keys: it may wait for a transaction of the host's, and must not keep one of
// those that claim and end jobs.
func (r *engine) fanOut(one *run, o *Outcome) *run {
	cause := context.Cause(one.ctx)
	f, wait, err := r.branchesOf(one, o)
	if err != nil {
		return r.concludeError(one, job.Permanent(err), cause)
	}
	pool := r.store.Pool()
	if o.inTx != nil || slices.ContainsFunc(f.Children, func(n store.NewJob) bool { return n.UniqueKey != nil }) {
		pool = r.pool
	}
	var empty bool
	write := func() error {
		return r.held(one.ctx, one.core, pool, func(ctx context.Context, tx pgx.Tx) error {
			if o.inTx != nil {
				if err := callWrite(ctx, tx, o.inTx); err != nil {
					return &writeError{err}
				}
			}
			if err := one.events.WriteIn(ctx, tx); err != nil {
				return err
			}
			var err error
			if empty, err = r.store.FanOut(ctx, tx, f); err != nil {
				return err
			}
			return failpoint.Hit(failpoint.InTxCommit)
		}, func(ctx context.Context) (bool, error) {
			c, err := r.store.ClaimOutcome(ctx, one.lease)
			return c.FannedOut, err
		})
	}
	err = write()
	for try := 0; r.store.IDTaken(err) && try < idTries; try++ {
		if err = r.renumberNext(one, each(f.Children)...); err == nil {
			err = write()
		}
	}
	if err != nil {
		if store.Refused(err) {
			err = job.Permanent(err)
		}
		return r.concludeHeld(one, err)
	}
	one.wrote.Store(true)
	one.traceState(job.Waiting)
	r.log.DebugContext(one.ctx, "job waits for its branches", append(one.attrs(), telemetry.Branches, len(f.Children)+f.Parts)...)
	if one.claimed.Subject != "" {
		r.freed.add(store.Key{Kind: one.claimed.Kind, Subject: one.claimed.Subject})
	}
	if empty {
		r.unbalanced.add(one.lease.JobID)
	}
	if wait > 0 {
		r.due.parked(wait)
		r.poller.Nudge()
	}
	r.wake()
	r.wakePeers()
	return nil
}

// branchesOf makes the rows of a fan-out. wait is until the first child that is delayed becomes due; 0: none is.
func (r *engine) branchesOf(one *run, o *Outcome) (f store.FanOut, wait time.Duration, err error) {
	defer guard.Recover(&err)
	c := &one.claimed
	f = store.FanOut{Lease: one.lease, Parts: o.fan.parts, FailFast: o.fan.failFast, Outcome: o.quality}
	fail := func(err error) (store.FanOut, time.Duration, error) { return store.FanOut{}, 0, err }
	switch n := len(o.fan.children) + o.fan.parts; {
	case o.next != nil:
		return fail(fmt.Errorf("fan out: the step that follows is set with Join: %w", job.ErrInvalid))
	case n > r.opts.MaxFanOut:
		return fail(fmt.Errorf("fan-out of %d branches, at most %d: %w", n, r.opts.MaxFanOut, job.ErrTooLarge))
	case c.Step+1 > job.MaxChainSteps:
		return fail(fmt.Errorf("fan-out at step %d of at most %d: %w", c.Step, job.MaxChainSteps, job.ErrTooLarge))
	}
	if f.Result, err = o.encodeResult(); err != nil {
		return fail(err)
	}
	if f.Plan, err = r.planAfter(one, o); err != nil {
		return fail(err)
	}
	if c.Step == 0 && c.Planned == nil {
		f.Pipeline = new(string)
	}
	ids, err := r.newIDs(one, len(o.fan.children))
	if err != nil {
		return fail(err)
	}
	from := before{id: c.ID, pipeline: c.PipelineID, step: c.Step, lane: c.Lane, priority: c.Priority, submitter: c.Submitter}
	for i, args := range o.fan.children {
		w, err := r.newSubmission(args, nil)
		if err != nil {
			return fail(fmt.Errorf("child %d: %w", i+1, err))
		}
		if w.idempotencyKey != "" || w.pipeline != "" {
			return fail(fmt.Errorf("child %s: idempotency keys and names are for submissions, not for children: %w", w.kind, job.ErrInvalid))
		}
		if w.approval {
			return fail(fmt.Errorf("child %s: approval is for submissions, not for children: %w", w.kind, job.ErrInvalid))
		}
		if w.submitter != "" {
			return fail(fmt.Errorf("child %s: it has the submitter of its pipeline: %w", w.kind, job.ErrInvalid))
		}
		if err := r.checkLane(one, w); err != nil {
			return fail(fmt.Errorf("child %s: %w", w.kind, err))
		}
		n := r.follow(w, from)
		no := int32(i + 1)
		n.ID, n.Branch = ids[i], store.Branch{Group: &c.ID, No: &no}
		n.Trace = r.tracing.child(one, &n)
		if w.delay > 0 && (wait == 0 || w.delay < wait) {
			wait = w.delay
		}
		f.Children = append(f.Children, n)
	}
	return f, wait, nil
}

// planAfter encodes the steps that follow a fan-out: its join, and what was planned before.
func (r *engine) planAfter(one *run, o *Outcome) (json.RawMessage, error) {
	if o.fan.join == nil {
		return one.claimed.Planned, nil
	}
	steps, err := r.plan(o.fan.join, false)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	for _, s := range steps {
		if err := r.checkLane(one, &submission{kind: s.Kind, lane: s.Lane}); err != nil {
			return nil, fmt.Errorf("join %s: %w", s.Kind, err)
		}
	}
	planned, err := decodePlan(one.claimed.ID, one.claimed.Planned)
	if err != nil {
		return nil, err
	}
	w := &submission{kind: o.fan.join.Kind(), planned: append(steps, planned...)}
	err = w.encodePlan()
	return w.plan, err
}

// concludeHeld ends a claim whose last transaction was not committed.
func (r *engine) concludeHeld(one *run, err error) *run {
	if errors.Is(err, job.ErrLeaseLost) && one.isLost() {
		return r.finished(one, nil, store.Ending{}, store.Ended{}, err)
	}
	if w, ok := errors.AsType[*writeError](err); ok {
		return r.concludeError(one, w.err, context.Cause(one.ctx))
	}
	if errors.Is(err, job.ErrCancelled) {
		// A cancel was committed before, or its handler was told: the end says so, without the writes and without a next step.
		return r.finish(one, store.Ending{State: job.Cancelled, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
	}
	cause := context.Cause(one.ctx)
	if errors.Is(err, job.ErrLeaseLost) && !errors.Is(cause, job.ErrLeaseLost) {
		return r.finished(one, nil, store.Ending{}, store.Ended{}, err) // the fence refused it
	}
	// When it is the context that says so, the pod has lost its trust, and the claim may well be ours still: it is given
	// back, which the fence refuses when it is not.
	return r.concludeError(one, fmt.Errorf("end with the handler's writes: %w", err), cause)
}
