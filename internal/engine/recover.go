package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// sweeper is the poller's source of work. It hands back orphans, recovers the jobs of lapsed pods, promotes due jobs, and claims jobs.
type sweeper struct {
	*Identity
	*dueTimes // the same dueTimes as Identity.Due
	claims    *claimer
	missedAt  time.Time // when missed admissions were last searched for
}

// Sweep implements poller.Source.
func (s *sweeper) Sweep(ctx context.Context) (more bool) {
	if !s.Lease.Trusted() {
		return false
	}
	if err := s.handBackOrphans(ctx); err != nil {
		s.Damped.Warn(ctx, notHandedBack, telemetry.Err, err)
	} else {
		s.Damped.Over(ctx, notHandedBack)
	}
	promote, recover := s.take()
	if recover {
		if !s.Lease.MayJudge() {
			s.sweepAgain(false, true, s.Opts.HeartbeatEvery)
		} else if err := s.recoverLapsed(ctx); err != nil {
			s.Damped.Warn(ctx, recoveryFailed, telemetry.Err, s.DBError(err))
			s.sweepAgain(false, true, time.Second)
		} else {
			s.Damped.Over(ctx, recoveryFailed)
		}
	}
	if promote {
		const most = 500
		promoted, waiting, err := s.Store.Promote(ctx, most)
		for _, k := range waiting {
			s.admit.parked(k.Kind, k.Subject)
		}
		switch {
		case err != nil:
			s.Damped.Warn(ctx, promotionFailed, telemetry.Err, s.DBError(err))
			s.sweepAgain(true, false, time.Second)
		case promoted == most:
			more = true
			s.sweepAgain(true, false, 0)
		}
		if err == nil {
			s.Damped.Over(ctx, promotionFailed)
		}
		if promoted > len(waiting) {
			s.news.Store(true)
			s.WakePeers() // claims have skipped these jobs while their rows were locked, and this pod may be unable to run them
		}
	}
	s.admitMissed(ctx)
	claimed, err := s.claims.claimDue(ctx, s.look.Swap(false) || promote || recover)
	if err != nil {
		s.Damped.Warn(ctx, claimFailed, telemetry.Err, s.DBError(err))
		time.AfterFunc(time.Second, s.Wake)
		return false
	}
	s.Damped.Over(ctx, claimFailed)
	return more || claimed
}

// admitMissed admits the jobs that nobody has admitted, once per poll interval. The process that should have done so has failed, or has lost
// its connection.
func (s *sweeper) admitMissed(ctx context.Context) {
	if time.Since(s.missedAt) < s.Opts.PollEvery*9/10 {
		return
	}
	s.missedAt = time.Now()
	missed, err := s.Store.AdmitMissed(ctx)
	if err != nil {
		s.Damped.Warn(ctx, admissionFailed, telemetry.Err, s.DBError(err))
		return
	}
	if len(missed) > 0 {
		s.Metrics.Missed.Add(float64(len(missed)))
		s.admitted(missed)
	}
}

// recoverPage is the number of rows of the live table that a recovery statement reads.
const recoverPage = 5000

// recoverLapsed closes lapsed pods and recovers the jobs of closed ones, in pages. Recovery needs no slots, lanes or handlers, so any pod
// can recover any other pod's jobs.
func (s *sweeper) recoverLapsed(ctx context.Context) error {
	spared, left := s.Lease.Spared(s.Opts.LeaseFor)
	closed := time.Now()
	lapsed, err := store.CloseLapsed(ctx, s.Store, s.PodID(), s.Opts.LeaseFor, spared)
	if err != nil {
		return err
	}
	if left > 0 {
		s.sweepAgain(false, true, left)
	}
	podIDs, err := store.SweepsDue(ctx, s.Store)
	if err != nil || len(podIDs) == 0 {
		return err
	}
	recovered, passed, crashed := 0, 0, 0
	for after := int64(0); ; {
		page, err := store.RecoverPage(ctx, s.Store, podIDs, after, recoverPage, s.Opts.MaxCrashes)
		if err != nil {
			return err
		}
		_ = failpoint.Hit(failpoint.RecoverPage)
		s.Ends.ReportAll(page.Ended)
		for _, end := range page.Ended {
			s.SubjectFreed(end)
			if end.State == job.Failed {
				crashed++
			}
		}
		recovered += page.Pending + len(page.Ended)
		passed += page.Passed
		after = page.Last
		if page.Seen < recoverPage {
			break
		}
	}
	if passed > 0 {
		s.sweepAgain(false, true, time.Second) // other transactions have locked some rows, so sweep again
	} else {
		if lanes, err := store.VoidSlots(ctx, s.Store, podIDs); err != nil {
			return err
		} else if len(lanes) > 0 {
			s.Lanes.Notified(lanes...)
			s.news.Store(true)
		}
		if err := store.Swept(ctx, s.Store, podIDs); err != nil {
			return err
		}
	}
	for _, l := range lapsed {
		s.Log.WarnContext(ctx, "pod lapsed", telemetry.Pod, l.Name, telemetry.PodID, l.PodID, telemetry.LeaseUntil, l.LeaseUntil)
		s.Metrics.RecoverySeconds.Observe(max(0, l.Late+time.Since(closed)).Seconds())
	}
	if crashed > 0 {
		s.Log.WarnContext(ctx, "jobs failed", telemetry.Jobs, crashed, telemetry.ErrorClass, job.ClassCrashLimit)
	}
	if recovered > 0 {
		s.Count.Recovered.Add(float64(recovered))
		s.Log.WarnContext(ctx, "jobs of lapsed pods recovered", telemetry.Jobs, recovered)
		s.WakePeers()
	}
	return nil
}
