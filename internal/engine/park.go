package engine

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// park ends a claim with a wait before another try, and reports whether it did: not when the lease is lost or a cancel was
// committed.
func (r *Engine) park(one *Run, wait time.Duration, why store.Retry) bool {
	return r.parkBy(one, wait, func(ctx context.Context) error {
		_, err := r.Store.Park(ctx, one.Lease, wait, why)
		return err
	})
}

// putOff ends a claim whose handler wants to be called later: after wait, doubled with every time.
func (r *Engine) putOff(one *Run, wait time.Duration, why string) {
	times := one.Claimed.PutOff + 1
	wait = job.PutOff(wait, times)
	if r.parkBy(one, wait, func(ctx context.Context) error {
		_, err := r.Store.PutOff(ctx, one.Lease, times, wait, why)
		return err
	}) {
		return
	}
	// A cancel was committed: end the job. Or the lease is lost, and this matches nothing.
	r.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
}

func (r *Engine) parkBy(one *Run, wait time.Duration, write func(ctx context.Context) error) bool {
	err := r.persist(one, func(ctx context.Context) error {
		err := write(ctx)
		if store.Unknown(err) {
			if c, err := r.Store.ClaimOutcome(ctx, one.Lease); err == nil && c.Parked {
				return nil
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, job.ErrLeaseLost) && !store.Refused(err) {
		// The pod is stopping, and the database does not answer: the lease runs out, and the net has it.
		r.Log.ErrorContext(one.Ctx, "wait of job was not written", append(one.attrs(), telemetry.Err, err)...)
		return true
	}
	if err == nil {
		one.Wrote.Store(true)
		r.Due.parked(wait)
		r.Poller.Nudge()
		if one.Claimed.Subject != "" {
			r.freed.add(store.Key{Kind: one.Claimed.Kind, Subject: one.Claimed.Subject})
			r.Poller.Wake()
		}
		return true
	}
	return false
}

// handBack gives a claim back to its lane, unspent.
func (r *Engine) handBack(one *Run, why string) {
	back := false
	err := r.persist(one, func(ctx context.Context) error {
		did, err := r.Store.HandBack(ctx, one.Lease.Pod, []job.Lease{one.Lease}, why)
		if store.Unknown(err) {
			if c, err := r.Store.ClaimOutcome(ctx, one.Lease); err == nil && c.Pending {
				back = true
				return nil
			}
		}
		back = did[one.Lease.JobID]
		return err
	})
	switch {
	case err == nil && back:
		one.Wrote.Store(true)
		r.Log.InfoContext(one.Ctx, "job handed back", append(one.attrs(), telemetry.Why, why)...)
		r.Wake()
		r.WakePeers()
	case err == nil:
		// To be cancelled, or lost: the fence decides which.
		r.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
	}
}

// persist does a write that a claim owes, again and again while the database does not answer, until the lease is known to
// be lost or the runner gives up stopping. do must be safe to repeat.
func (r *Engine) persist(one *Run, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(one.Ctx))
	defer cancel()
	stop := context.AfterFunc(r.flusher.life(), cancel)
	defer stop()
	for backoff := wait.NewBackoff(); ; {
		err := do(ctx)
		// Also what is neither of the connection nor of the values, such as a right that was taken, is tried again: nobody
		// else looks for the jobs of a living pod.
		if class := store.Class(err); err == nil || class == "" || store.Refused(err) {
			return r.DBError(err)
		}
		_ = r.DBError(err)
		if one.IsLost() {
			return job.ErrLeaseLost
		}
		if !backoff.Wait(ctx) {
			return err
		}
	}
}

// released is the error of a handler that gives its claim back without a verdict, or leaves it as it is.
type Release struct {
	Why   string                     // empty: the claim is left as it is
	Owned func(context.Context) bool // whether the claim is still this process's to give back; nil: it is
	Done  func()                     // runs before the claim is given back
}

func (*Release) Error() string { return "released by its worker" }

// release ends a run without a verdict of its handler.
func (r *Engine) release(one *Run, err *Release) {
	if err.Why == "" || one.IsLost() {
		return
	}
	ctx := context.WithoutCancel(one.Ctx)
	if err.Owned != nil && !err.Owned(ctx) {
		return
	}
	if c, err := r.Commands.ClaimOutcome(ctx, one.Lease); err == nil && !c.Held {
		return // it has ended elsewhere, or is another claim's: nothing is discarded here
	}
	one.span.Event("job.handed_back")
	err.Done()
	r.handBack(one, err.Why)
}
