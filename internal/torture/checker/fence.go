package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// sameClock is by how much two programs' readings of the machine's clock may differ: the database rounds.
const sameClock = 5 * time.Millisecond

// fenceHolds (I3): fences rise with every claim; whatever is written for a claim carries the latest claim's fence and pod,
// and comes before that claim's end; no handler starts without a claim, nor before it; a pod whose row was closed claims
// nothing more, and goes on under a new boot id; and what a job writes in the transaction that ends it is there once, by
// the claim that ended it.
func fenceHolds(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		writesFenced(s, f)
		v.startsClaimed(s, f)
	}
	for _, b := range v.boots {
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
			f.judge(fence < latest, s.id, "job %d: event %d calls fence %d stale, the latest is %d", s.id, number(e), fence, latest)
		case e.Fence == nil && e.From != job.Running:
		default:
			f.judge(fence == latest, s.id, "job %d: event %d (%s) was accepted with fence %d, the latest claim has %d", s.id, number(e),
				e.Event, fence, latest)
			if e.From == job.Running {
				f.judge(open, s.id, "job %d: event %d (%s) was accepted after its claim, fence %d, had ended", s.id, number(e), e.Event, fence)
			}
			if e.From != job.Waiting && e.Boot != nil && *e.Boot != owner { // who waits is ended by whoever sees that it can be
				f.accuse(s.id, "job %d: event %d (%s) was accepted from boot %s, the claim is %s's", s.id, number(e), e.Event,
					short(*e.Boot), short(owner))
			}
			if e.To != job.Running {
				open = false
			}
		}
	}
}

// startsClaimed looks for handlers that ran without a claim, or before its transaction had begun.
func (v *view) startsClaimed(s *story, f *Finding) {
	for _, l := range s.lines {
		if l.Event != "start" {
			continue
		}
		c := s.claim(l.Fence, l.Boot)
		if !f.judge(c != nil, s.id, "job %d: a handler started on %s with fence %d, which was never claimed", s.id, l.Pod, l.Fence) {
			continue
		}
		f.judge(!l.T.Before(c.event.At.Add(-sameClock)), s.id, "job %d: its handler with fence %d started %s before the claim", s.id, l.Fence,
			c.event.At.Sub(l.T))
	}
}

// closedStaysClosed accuses a boot that claims after its row was closed, and a process that goes on as if it had not been.
// The first job that was taken back from it proves that the row was closed before; without one the row was closed shortly
// after its event says.
func (v *view) closedStaysClosed(b *boot, f *Finding) {
	if b.closed.IsZero() {
		return
	}
	f.judge(!b.reclosed, 0, "the row of %s was closed twice: it had been opened again", b.name())
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
	for _, other := range b.life.boots {
		// A remote worker that was told so for another reason has begun anew before, and left this row to lapse.
		if other.joined.After(b.closed) || b.life.remote() && other.joined.After(b.joined) {
			f.Checked++
			return
		}
	}
	// Its next heartbeat but one at the latest tells it so.
	enough := 3*v.run.Settings.Heartbeat + v.slack
	if v.ableFor(b.life, b.closed, b.life.Ended, enough) {
		f.judge(false, 0, "%s was declared dead at %s, lived on undisturbed, and never took a new boot id", b.name(), clock(b.closed))
	}
}

// rowsOnce looks at what demo.tx wrote in the transactions that ended its jobs.
func rowsOnce(v *view, f *Finding) {
	if v.run.Rows == nil {
		return
	}
	rows := map[int64][]history.Row{}
	for _, r := range v.run.Rows {
		rows[r.Job] = append(rows[r.Job], r)
	}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || s.job.Kind != "demo.tx" {
			continue
		}
		want := 0
		if s.job.State == job.Succeeded {
			want = max(demoArgsOf(s.job).Rows, 0)
		}
		found := rows[s.id]
		f.judge(len(found) == want, s.id, "job %d is %s and wrote %d rows with its end, want %d", s.id, s.job.State, len(found), want)
		for _, r := range found {
			if r.Fence != s.job.Fence {
				f.accuse(s.id, "job %d ended by fence %d, and a row of fence %d is there", s.id, s.job.Fence, r.Fence)
				break
			}
		}
	}
}

// clock is a moment of a run, for people.
func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
