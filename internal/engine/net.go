package engine

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// net is what the poller sweeps: lapsed pods, due moments, and the lanes.
type net struct{ r *Engine }

// dueTimes are the moments at which a sweep is worth it, on this process's clock.
type dueTimes struct {
	mu    sync.Mutex
	next  time.Time // earliest moment in parked
	lapse time.Time // earliest end of a peer's lease
	sweep bool      // a closed pod's jobs are to be looked for
}

// told takes what a heartbeat told, which is the whole truth of a moment ago.
func (d *dueTimes) Apply(b store.Beat) {
	local := func(t *time.Time) time.Time {
		if t == nil {
			return time.Time{}
		}
		return time.Now().Add(t.Sub(b.Now))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// A job that was parked here while the heartbeat was under way is not in its answer: the earlier moment counts.
	if told := local(b.NextDue); d.next.IsZero() || !told.IsZero() && told.Before(d.next) {
		d.next = told
	}
	d.lapse, d.sweep = local(b.NextLapse), b.SweepIsDue
	if !d.lapse.IsZero() {
		d.lapse = d.lapse.Add(25 * time.Millisecond) // a look before the lease has ended would find nothing
	}
}

// parked notes that a job was parked here for a while.
func (d *dueTimes) parked(wait time.Duration) {
	at := time.Now().Add(wait)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next.IsZero() || at.Before(d.next) {
		d.next = at
	}
}

// take reports which looks are due and clears them.
func (d *dueTimes) take() (promote, recover bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	promote = !d.next.IsZero() && !now.Before(d.next)
	recover = d.sweep || !d.lapse.IsZero() && !now.Before(d.lapse)
	if promote {
		d.next = time.Time{}
	}
	if recover {
		d.lapse, d.sweep = time.Time{}, false
	}
	return promote, recover
}

// again asks for a look after one that failed or was cut short.
func (d *dueTimes) again(promote, recover bool, wait time.Duration) {
	if promote {
		d.parked(wait)
	}
	if recover {
		d.mu.Lock()
		d.lapse = time.Now().Add(wait)
		d.mu.Unlock()
	}
}

// NextDue implements poller.Source.
func (n net) NextDue() time.Time {
	d := &n.r.Due
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.next
	if !d.lapse.IsZero() && (next.IsZero() || d.lapse.Before(next)) {
		next = d.lapse
	}
	if d.sweep {
		next = time.Now()
	}
	return next
}

// Sweep implements poller.Source: it takes back what lapsed pods left, promotes what is due, and claims.
func (n net) Sweep(ctx context.Context) (more bool) {
	r := n.r
	if !r.Lease.Trusted() {
		return false
	}
	if err := r.handBackStrays(ctx); err != nil {
		r.Damped.Warn(ctx, notHandedBack, telemetry.Err, err)
	} else {
		r.Damped.Over(ctx, notHandedBack)
	}
	promote, recover := r.Due.take()
	if recover {
		if !r.Lease.mayJudge() {
			r.Due.again(false, true, r.Opts.HeartbeatEvery)
		} else if err := r.recover(ctx); err != nil {
			r.Damped.Warn(ctx, recoveryFailed, telemetry.Err, r.DBError(err))
			r.Due.again(false, true, time.Second)
		} else {
			r.Damped.Over(ctx, recoveryFailed)
		}
	}
	if promote {
		const most = 500
		promoted, err := r.Store.Promote(ctx, most)
		switch {
		case err != nil:
			r.Damped.Warn(ctx, promotionFailed, telemetry.Err, r.DBError(err))
			r.Due.again(true, false, time.Second)
		case promoted == most:
			more = true
			r.Due.again(true, false, 0)
		}
		if err == nil {
			r.Damped.Over(ctx, promotionFailed)
		}
		if promoted > 0 {
			r.WakePeers() // who looked a moment ago found them in our hands, and we may not be able to run them
		}
	}
	claimed, err := r.claim(ctx, r.look.Swap(false) || promote || recover)
	if err != nil {
		r.Damped.Warn(ctx, claimFailed, telemetry.Err, r.DBError(err))
		time.AfterFunc(time.Second, r.Wake)
		return false
	}
	r.Damped.Over(ctx, claimFailed)
	return more || claimed
}

// recoverPage is how many rows of live one statement of a recovery looks at.
const recoverPage = 5000

// recover closes lapsed pods and takes back the jobs of closed ones, in pages. It needs neither slots nor lanes nor
// handlers, for every pod can do it for all.
func (r *Engine) recover(ctx context.Context) error {
	spared, left := r.Lease.spared(r.Opts.LeaseFor)
	lapsed, err := store.CloseLapsed(ctx, r.Store, r.Boot(), r.Opts.LeaseFor, spared)
	if err != nil {
		return err
	}
	if left > 0 {
		r.Due.again(false, true, left)
	}
	boots, err := store.SweepsDue(ctx, r.Store)
	if err != nil || len(boots) == 0 {
		return err
	}
	recovered, passed, crashed := 0, 0, 0
	for after := int64(0); ; {
		page, err := store.RecoverPage(ctx, r.Store, boots, after, recoverPage, r.Opts.MaxCrashes)
		if err != nil {
			return err
		}
		_ = failpoint.Hit(failpoint.RecoverPage)
		r.Count.Ends.Count(job.Failed, job.ClassCrashLimit, page.Crashed...)
		r.Count.Ends.Count(job.Cancelled, "", page.Cancelled...)
		crashed += len(page.Crashed)
		recovered += page.Pending + len(page.Crashed) + len(page.Cancelled)
		passed += page.Passed
		after = page.Last
		if page.Seen < recoverPage {
			break
		}
	}
	if passed > 0 {
		r.Due.again(false, true, time.Second) // somebody holds their rows: this was not the last look
	} else {
		if lanes, err := store.VoidSlots(ctx, r.Store, boots); err != nil {
			return err
		} else if len(lanes) > 0 {
			r.heard.Store(true)
			r.WakePeers()
		}
		if err := store.Swept(ctx, r.Store, boots); err != nil {
			return err
		}
	}
	for _, l := range lapsed {
		r.Log.WarnContext(ctx, "pod lapsed", telemetry.Pod, l.Name, telemetry.Boot, l.Boot, telemetry.LeaseUntil, l.LeaseUntil)
		r.Metrics.RecoverySeconds.Observe(max(0, time.Since(l.LeaseUntil).Seconds()))
	}
	if crashed > 0 {
		r.Log.WarnContext(ctx, "jobs failed", telemetry.Jobs, crashed, telemetry.ErrorClass, job.ClassCrashLimit)
	}
	if recovered > 0 {
		r.Count.Recovered.Add(float64(recovered))
		r.Log.WarnContext(ctx, "orphans recovered", telemetry.Jobs, recovered)
		r.WakePeers()
	}
	return nil
}
