package engine

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// park ends a claim with a wait before another try. It reports false if the lease is lost or a cancel was committed.
func (fin *finisher) park(one *Run, wait time.Duration, why store.Retry) bool {
	return fin.parkBy(one, wait, func(ctx context.Context) error {
		_, err := fin.Store.Park(ctx, one.Lease, wait, why)
		return err
	})
}

// snooze ends a claim whose handler returned [work.Snooze].
func (fin *finisher) snooze(one *Run, s work.Snooze) {
	times := one.Claimed.Snoozes + 1
	wait, why := max(s.Wait, 0), store.Retry{Started: one.started(), Message: job.Storable(s.Why, 500)}
	if s.Backoff {
		wait = snoozeWait(wait, times)
	}
	if fin.parkBy(one, wait, func(ctx context.Context) error {
		_, err := fin.Store.Snooze(ctx, one.Lease, times, wait, why)
		return err
	}) {
		return
	}
	// A cancel was committed: end the job. Or the lease is lost, and this matches no row.
	fin.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
}

// longestSnooze is the longest wait of a job that snoozes with backoff, unless its handler requests a longer one.
const longestSnooze = 10 * time.Minute

// snoozeWait returns the wait of a job that snoozes with backoff for the n-th time, counted from 1: min(max(10m, d), d · 2ⁿ⁻¹), without
// jitter.
func snoozeWait(d time.Duration, n int) time.Duration {
	if d == 0 || d >= longestSnooze {
		return d // not computed as a float, in which the longest durations would become negative
	}
	return time.Duration(math.Min(float64(longestSnooze), float64(d)*math.Pow(2, float64(max(n, 1)-1))))
}

// parkBy ends a claim with a wait that write stores, and reports whether it did.
func (fin *finisher) parkBy(one *Run, wait time.Duration, write func(ctx context.Context) error) bool {
	err := fin.persist(one, func(ctx context.Context) error {
		err := write(ctx)
		if store.Unknown(err) {
			if c, err := fin.Store.ClaimOutcome(ctx, one.Lease); err == nil && c.Parked {
				return nil
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, job.ErrLeaseLost) && !store.Refused(err) {
		// The pod is stopping, and the database does not answer: the lease expires, and another pod recovers the job.
		fin.Log.ErrorContext(one.Ctx, "could not write the wait of a job", append(one.attrs(), telemetry.Err, err)...)
		return true
	}
	if err == nil {
		one.Wrote.Store(true)
		fin.wakeAfter(wait)
		if fin.freeSubject(one) {
			fin.Poller.Wake()
		}
		return true
	}
	return false
}

// handBack gives a claim back to its lane without spending an attempt.
func (fin *finisher) handBack(one *Run, why string) {
	back := false
	err := fin.persist(one, func(ctx context.Context) error {
		did, err := fin.Store.HandBack(ctx, one.Lease.Pod, []job.Lease{one.Lease}, why)
		if store.Unknown(err) {
			if c, err := fin.Store.ClaimOutcome(ctx, one.Lease); err == nil && c.Pending {
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
		fin.Log.InfoContext(one.Ctx, "job handed back", append(one.attrs(), telemetry.Why, why)...)
		fin.wakeAll()
	case err == nil:
		// Cancelled or lost: the fence decides.
		fin.finish(one, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled}, nil)
	}
}

// persist makes a write that must not be lost. It retries while the database does not answer, until the lease is known to be lost or the
// engine gives up writing. do must be safe to repeat.
func (fin *finisher) persist(one *Run, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(one.Ctx))
	defer cancel()
	stop := context.AfterFunc(fin.leases.alive, cancel)
	defer stop()
	for backoff := wait.NewBackoff(); ; {
		err := do(ctx)
		// Other errors, such as a revoked privilege, are retried too: no other pod recovers the jobs of a living one.
		if class := store.Class(err); err == nil || class == "" || store.Refused(err) {
			return fin.DBError(err)
		}
		_ = fin.DBError(err)
		if one.IsLost() {
			return job.ErrLeaseLost
		}
		if !backoff.Wait(ctx) {
			return err
		}
	}
}

// NoVerdict is the error of a handler that gives its claim back without a verdict, or leaves it unchanged.
type NoVerdict struct {
	Why   string                     // empty: the claim stays unchanged
	Owned func(context.Context) bool // reports whether the claim is still this process's to give back; nil: it is
	Done  func()                     // called before the claim is given back; only with Why
}

func (*NoVerdict) Error() string { return "no outcome from its worker" }

// endWithoutVerdict ends a run without a verdict of its handler.
func (fin *finisher) endWithoutVerdict(one *Run, err *NoVerdict) {
	if err.Why == "" || one.IsLost() {
		return
	}
	ctx := context.WithoutCancel(one.Ctx)
	if err.Owned != nil && !err.Owned(ctx) {
		return
	}
	if c, err := fin.Commands.ClaimOutcome(ctx, one.Lease); err == nil && !c.Held {
		return // it has ended elsewhere, or belongs to another claim: nothing is discarded here
	}
	one.span.Event("job.handed_back")
	err.Done()
	fin.handBack(one, err.Why)
}
