package engine

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// retry schedules a job's next attempt after a delay. It returns the same errors as park.
func (x *executor) retry(run *Run, wait time.Duration, why store.Retry) error {
	return x.park(run, wait, why, x.Store.Park)
}

// hold keeps other jobs from starting, as the handler's error requests. After an error it gives up: the handlers of those jobs ask again.
func (x *executor) hold(run *Run, f Failure) {
	c := run.Claimed
	for _, h := range f.Hold {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(run.Ctx), 2*time.Second)
		var err error
		switch {
		case h == job.ForLane:
			x.Lanes.Hold(c.Lane, time.Now().Add(*f.After))
			err = store.HoldLane(ctx, x.Store, c.Lane, *f.After)
		case h == job.ForKey && c.Key != "":
			if err = store.HoldKey(ctx, x.Store, c.Lane, c.Key, *f.After); err == nil {
				time.AfterFunc(*f.After, func() {
					if !x.Closing.Load() { // otherwise, the polls of other pods admit the jobs
						x.LinesChanged(store.Line{Key: c.Key})
					}
				})
			}
		}
		cancel()
		if err != nil {
			x.Log.WarnContext(run.Ctx, "could not hold the jobs that are to wait with this one", append(run.attrs(), telemetry.Err, x.DBError(err))...)
		}
	}
}

// snooze parks a job whose handler returned [work.Snooze].
func (x *executor) snooze(run *Run, s work.Snooze) {
	times := run.Claimed.Snoozes + 1
	wait, why := s.Wait, store.Retry{Started: run.started(), Message: job.Storable(s.Why, 500)}
	if s.Backoff {
		wait = snoozeWait(wait, times)
	}
	err := x.park(run, wait, why, func(ctx context.Context, l job.Lease, wait time.Duration, why store.Retry) (time.Time, error) {
		return x.Store.Snooze(ctx, l, times, wait, why)
	})
	if !notParked(err) {
		return
	}
	// Either a cancel was committed, and this write finishes the job, or the lease is lost, and the write matches no row.
	x.finish(run, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled})
}

// longestSnooze is the maximum delay for a job that snoozes with backoff, unless its handler requests a longer one.
const longestSnooze = 10 * time.Minute

// snoozeWait returns the delay for the n-th snooze with backoff, counting from 1: min(max(10m, d), d · 2ⁿ⁻¹), without jitter.
func snoozeWait(d time.Duration, n int) time.Duration {
	if d == 0 || d >= longestSnooze {
		return d // as floats, the longest durations would turn negative
	}
	return time.Duration(math.Min(float64(longestSnooze), float64(d)*math.Pow(2, float64(max(n, 1)-1))))
}

// park parks a job by calling write. After an error for which notParked is false, the outcome is unknown.
func (x *executor) park(run *Run, wait time.Duration, why store.Retry,
	write func(context.Context, job.Lease, time.Duration, store.Retry) (time.Time, error)) error {
	err := x.persist(run, func(ctx context.Context) error {
		_, err := write(ctx, run.Lease, wait, why)
		if store.Untranslatable(err) {
			why.Message = store.ASCII(why.Message, job.MaxErrorBytes)
			_, err = write(ctx, run.Lease, wait, why)
		}
		return err
	}, func(c store.ClaimOutcome) bool { return c.Parked })
	switch {
	case err == nil:
		run.Wrote.Store(true)
		x.WakeAfter(wait)
		x.LinesChanged(run.Claimed.Lines()...)
	case !notParked(err):
		// The pod is stopping and the database does not respond. If the job is not parked, the lease will expire, and another pod will recover it.
		x.Log.ErrorContext(run.Ctx, "could not park a job", append(run.attrs(), telemetry.Err, err)...)
	}
	return err
}

// notParked reports whether err means that the job was not parked, because the lease is lost, a cancel was committed, or PostgreSQL refused
// the values.
func notParked(err error) bool { return errors.Is(err, job.ErrLeaseLost) || store.Refused(err) }

// handBack returns a job to its lane without counting an attempt.
func (x *executor) handBack(run *Run, why string) {
	back := false
	err := x.persist(run, func(ctx context.Context) error {
		did, err := x.Store.HandBack(ctx, run.Lease.Pod, []job.Lease{run.Lease}, why)
		back = did[run.Lease.JobID]
		return err
	}, func(c store.ClaimOutcome) bool {
		back = c.Pending
		return back
	})
	switch {
	case err == nil && back:
		run.Wrote.Store(true)
		x.Log.InfoContext(run.Ctx, "job handed back", append(run.attrs(), telemetry.Why, why)...)
		x.WakeAll()
		x.LinesChanged(run.Claimed.Lines()...)
	case err == nil:
		// Either the job was cancelled or the claim is lost. The write's fence check tells the two apart.
		x.finish(run, store.Ending{State: job.Failed, Outcome: job.Error, Reason: job.ReasonCancelled})
	}
}

// persist makes a write that must not be lost. It keeps retrying until the lease is known to be lost or the engine gives up writing. After a
// lost reply, written reports whether the claim's outcome shows the write; nil stands for an idempotent write.
func (x *executor) persist(run *Run, send func(ctx context.Context) error, written func(store.ClaimOutcome) bool) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(run.Ctx))
	defer cancel()
	stop := context.AfterFunc(x.leases.alive, cancel)
	defer stop()
	var committed func(context.Context) (bool, error)
	if written != nil {
		committed = func(ctx context.Context) (bool, error) {
			c, err := x.Store.ClaimOutcome(ctx, run.Lease)
			if err != nil && run.IsLost() {
				return false, nil // another pod recovers the job, so nobody needs the outcome
			}
			return err == nil && written(c), err
		}
	}
	err := x.untilKnown(ctx, x.DBError(send(ctx)), committed, send, func(err error) bool {
		// Errors such as a revoked privilege are retried too, because no other pod would recover the job while this one is alive.
		return store.Class(err) == "" || store.Refused(err) || run.IsLost()
	})
	if err != nil && store.Class(err) != "" && !store.Refused(err) && run.IsLost() {
		return job.ErrLeaseLost
	}
	return err
}

// NoOutcome is returned by a handler that has no outcome to report. The claim is either handed back or left unchanged.
type NoOutcome struct {
	Why   string                     // reason for the hand-back; if empty, the claim is left unchanged
	Owned func(context.Context) bool // reports whether this process may still hand back the claim; nil means yes
	Done  func()                     // called before the claim is handed back; used only with Why
}

func (*NoOutcome) Error() string { return "no outcome from its worker" }

// endWithoutOutcome ends a run whose handler reported no outcome.
func (x *executor) endWithoutOutcome(run *Run, err *NoOutcome) {
	if err.Why == "" || run.IsLost() {
		return
	}
	ctx := context.WithoutCancel(run.Ctx)
	if err.Owned != nil && !err.Owned(ctx) {
		return
	}
	if c, err := x.Commands.ClaimOutcome(ctx, run.Lease); err == nil && !c.Held {
		return // the job has ended elsewhere or has another claim, so there is nothing to hand back
	}
	run.span.Event("job.handed_back")
	err.Done()
	x.handBack(run, err.Why)
}
