package poller

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// recoverPage is the number of rows of the live table that a recovery statement reads.
const recoverPage = 5000

// recoverClosedPods closes lapsed pods and recovers the jobs of closed ones, in pages. Recovery needs no slots, lanes or handlers, so any pod
// can recover any other pod's jobs.
func (p *Poller) recoverClosedPods(ctx context.Context) error {
	spared, left := p.Lease.Spared(p.Opts.LeaseDuration)
	closed := time.Now()
	lapsed, err := store.CloseLapsed(ctx, p.Store, p.PodID(), p.Opts.LeaseDuration, spared)
	if err != nil {
		return err
	}
	if left > 0 {
		p.due.pollAgain(false, true, left)
	}
	podIDs, err := store.SweepsDue(ctx, p.Store)
	if err != nil || len(podIDs) == 0 {
		return err
	}
	recovered, passed, crashed := 0, 0, 0
	for after := int64(0); ; {
		page, err := store.RecoverPage(ctx, p.Store, podIDs, after, recoverPage, p.Opts.MaxCrashes)
		if err != nil {
			return err
		}
		_ = failpoint.Hit(failpoint.RecoverPage)
		for _, at := range page.Ranks { // recovered jobs precede all others there, so no mark may hide them
			p.Marks.Admitted(at)
			p.Late.Add(at.Lane, at.Priority, at.ReadyAt)
		}
		p.Ends.ReportAll(page.Ended)
		p.LinesChanged(page.Lines...)
		for _, end := range page.Ended {
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
		p.due.pollAgain(false, true, time.Second) // other transactions have locked some rows, so poll again
	} else {
		if lanes, err := store.VoidSlots(ctx, p.Store, podIDs); err != nil {
			return err
		} else if len(lanes) > 0 {
			p.Lanes.Notified(lanes...)
			p.news.Store(true)
		}
		if err := store.Swept(ctx, p.Store, podIDs); err != nil {
			return err
		}
	}
	for _, l := range lapsed {
		p.Log.WarnContext(ctx, "pod lapsed", telemetry.Pod, l.Name, telemetry.PodID, l.PodID, telemetry.LeaseUntil, l.LeaseUntil)
		p.Metrics.RecoverySeconds.Observe(max(0, l.Late+time.Since(closed)).Seconds())
	}
	if crashed > 0 {
		p.Log.WarnContext(ctx, "jobs failed", telemetry.Jobs, crashed, telemetry.ErrorClass, job.ClassCrashLimit)
	}
	if recovered > 0 {
		p.Count.Recovered.Add(float64(recovered))
		p.Log.WarnContext(ctx, "jobs of lapsed pods recovered", telemetry.Jobs, recovered)
		p.WakePeers()
	}
	return nil
}
