package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// sameClock is the maximum difference between two programs' readings of the machine's clock. The database rounds its timestamps.
const sameClock = 5 * time.Millisecond

// fenceHolds (I3) checks fencing:
//
//   - Fences increase with every claim.
//   - Every write for a claim carries the fence and the pod of the latest claim, and comes before that claim ends.
//   - No handler starts without a claim, or before its claim.
//   - A pod whose row was closed claims nothing more and continues under a new pod ID.
//   - The rows that a job writes in the transaction that finishes it exist once, written by the claim that finished the job.
func fenceHolds(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		writesFenced(s, f)
		v.startsClaimed(s, f)
	}
	for _, b := range v.podIDs {
		v.closedStaysClosed(b, f)
	}
	rowsOnce(v, f)
}

func writesFenced(s *story, f *Finding) {
	var (
		latest int64
		owner  string
		open   bool
	)
	for _, e := range s.events {
		fence := fenceOf(e)
		switch {
		case claims(e):
			f.judge(fence > latest, s.id, "job %d: event %d claims with fence %d after %d", s.id, number(e), fence, latest)
			latest, owner, open = max(latest, fence), bootOf(e), true
		case e.Event == "job.stale_result":
			f.judge(fence < latest, s.id, "job %d: event %d calls fence %d stale, but the latest is %d", s.id, number(e), fence, latest)
		case e.Fence == nil && e.From != job.Running:
		default:
			f.judge(fence == latest, s.id, "job %d: event %d (%s) was accepted with fence %d, but the latest claim has %d", s.id, number(e),
				e.Event, fence, latest)
			if e.From == job.Running {
				f.judge(open, s.id, "job %d: event %d (%s) was accepted after its claim, fence %d, had ended", s.id, number(e), e.Event, fence)
			}
			if e.From != job.Waiting && e.PodID != nil && *e.PodID != owner { // any pod may end a waiting job
				f.accuse(s.id, "job %d: event %d (%s) was accepted from pod %s, but the claim belongs to pod %s", s.id, number(e), e.Event,
					short(*e.PodID), short(owner))
			}
			if e.To != job.Running {
				open = false
			}
		}
	}
}

// startsClaimed checks that no handler started without a claim or before the claim's transaction began.
func (v *view) startsClaimed(s *story, f *Finding) {
	for _, l := range s.lines {
		if l.Event != "start" {
			continue
		}
		c := s.claim(l.Fence, l.PodID)
		if !f.judge(c != nil, s.id, "job %d: a handler started on %s with fence %d, which was never claimed", s.id, l.Pod, l.Fence) {
			continue
		}
		f.judge(!l.T.Before(c.event.At.Add(-sameClock)), s.id, "job %d: its handler with fence %d started %s before the claim", s.id, l.Fence,
			c.event.At.Sub(l.T))
	}
}

// closedStaysClosed reports a pod ID that claims jobs after its row was closed, and a process that continues under the old pod ID. If a job
// was taken back from the pod ID, the row must have been closed before that. Otherwise, the row counts as closed shortly after its closing
// event.
func (v *view) closedStaysClosed(b *podID, f *Finding) {
	if b.closed.IsZero() {
		return
	}
	f.judge(!b.reclosed, 0, "the row of %s was closed twice, so it must have been reopened", b.name())
	from := b.recovered
	if sure := b.closed.Add(v.slack); (from.IsZero() || sure.Before(from)) && v.trouble.still("", b.closed, sure) {
		from = sure
	}
	for _, c := range b.claims {
		if !from.IsZero() && !c.of.tampered {
			f.judge(!c.event.At.After(from), c.of.id, "job %d was claimed by %s, with fence %d, %s after that pod was declared dead", c.of.id,
				b.name(), c.fence, c.event.At.Sub(b.closed))
		}
	}
	if !b.lapsed || b.life == nil {
		return
	}
	for _, other := range b.life.podIDs {
		// A remote worker may already have joined again for a different reason and left this row to expire.
		if other.joined.After(b.closed) || b.life.remote() && other.joined.After(b.joined) {
			f.Checked++
			return
		}
	}
	// The process learns that its row was closed from its second heartbeat at the latest.
	enough := 3*v.run.Settings.Heartbeat + v.slack
	if v.ableFor(b.life, b.closed, b.life.Ended, enough) {
		f.judge(false, 0, "%s was declared dead at %s and continued undisturbed, but never took a new pod ID", b.name(), clock(b.closed))
	}
}

// rowsOnce checks the rows that demo.tx and demo.batch wrote in the transactions that ended their jobs.
func rowsOnce(v *view, f *Finding) {
	if v.run.Rows == nil {
		return
	}
	rows := map[int64][]history.Row{}
	for _, r := range v.run.Rows {
		rows[r.Job] = append(rows[r.Job], r)
	}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || s.job.Kind != "demo.tx" && s.job.Kind != "demo.batch" {
			continue
		}
		want := 0
		if s.job.State == job.Succeeded {
			want = max(demoArgsOf(s.job).Rows, 0)
		}
		found := rows[s.id]
		f.judge(len(found) == want, s.id, "job %d is %s and wrote %d rows in its final transaction, want %d", s.id, s.job.State, len(found), want)
		for _, r := range found {
			if r.Fence != s.job.Fence {
				f.accuse(s.id, "job %d ended with fence %d, but has a row with fence %d", s.id, s.job.Fence, r.Fence)
				break
			}
		}
	}
}

// clock formats a time within the run for display.
func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
