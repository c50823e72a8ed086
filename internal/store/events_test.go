package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// history returns the names and fences of a job's events.
func (w *world) history(id int64) string {
	w.t.Helper()
	list, err := view.JobEvents(w.ctx(), w.Store, id, 0, 100)
	w.is.NoErr(err)
	var b strings.Builder
	for i, e := range list {
		w.is.Equal(*e.EventNo, i+1)
		fmt.Fprintf(&b, " %s", strings.TrimPrefix(e.Event, "job."))
		if e.Fence != nil {
			fmt.Fprintf(&b, "/%d", *e.Fence)
		}
	}
	return strings.TrimSpace(b.String())
}

// Each of these ways to end a claim writes its event to a row that is shared with other jobs.
func TestJobHistoryClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain, plain, plain)
	first := w.claims(a, 3)
	_, err := w.HandBack(w.ctx(), a, []job.Lease{leaseOf(a, first[0])}, "why not")
	w.is.NoErr(err)
	again := w.claimOne(a)
	w.is.Equal(again.ID, first[0].ID)
	_, err = w.Park(w.ctx(), leaseOf(a, again), 0, store.Retry{Message: "later"})
	w.is.NoErr(err)
	w.promote(1)
	w.is.Equal(w.claimOne(a).ID, again.ID)
	w.dies(a, b)
	last := w.claims(b, 3)
	w.is.Equal(len(last), 3)
	for i, c := range last {
		e := ending(c)
		if i == 1 {
			e.Outcome = job.Warning
		}
		w.end(b, e)
	}
	w.is.Equal(w.history(first[0].ID), "enqueued claimed/1 handed_back/1 claimed/2 retried/2 promoted/2 claimed/3 recovered/3 claimed/4 succeeded/4")
	w.is.Equal(w.history(first[1].ID), "enqueued claimed/1 recovered/1 claimed/2 succeeded/2")
	w.is.Equal(w.count(`select count(*) from trapeze.job_events where event = 'job.enqueued'`), 1) // all three events share one row
	w.is.Equal(w.count(`select count(*) from trapeze.job_events where event = 'job.succeeded'`), 3)

	// When a pod running an earlier release recovers a job, the pod does not record where to find the claim's event.
	w.exec(`update trapeze.job_events set claim_xid = null where job = $1`, first[1].ID)
	w.is.Equal(w.history(first[1].ID), "enqueued claimed/1 recovered/1 claimed/2 succeeded/2")
}

// A page of the feed may end between two events that were written by the same statement.
func TestFeedPageBoundaries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain, plain, about("s"), plain, plain)
	for _, c := range w.claims(podID, 5) {
		w.end(podID, endingWith(c, w.new(then(c))[0]))
	}
	all := w.count(`select count(*) from trapeze.job_event`)
	for _, limit := range []int{1, 2, 3, 7, 1000} {
		var seen map[string]bool
		pgtest.Wait(t, "the feed has everything", func() bool { // transactions of other tests can delay the feed
			seen = map[string]bool{}
			for cursor := ""; ; {
				page, err := view.Events(w.ctx(), w.Store, 0, cursor, limit)
				w.is.NoErr(err)
				for _, e := range page {
					w.is.True(!seen[e.Cursor])
					seen[e.Cursor], cursor = true, e.Cursor
				}
				if len(page) < limit {
					break
				}
			}
			return len(seen) == all
		})
	}
}
