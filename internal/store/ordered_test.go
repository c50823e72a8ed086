package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func ordered(subject string) func(*store.NewJob) {
	return func(n *store.NewJob) { n.Subject, n.Ordered = subject, true }
}

// again parks a claim until a retry in an hour.
func (w *world) again(podID string, c *store.Claimed) {
	w.t.Helper()
	w.is.NoErr(second(w.Park(w.ctx(), leaseOf(podID, c), time.Hour, store.Retry{Message: "boom"})))
	w.missed(0)
}

// retryDue makes the parked jobs with a time due and promotes them.
func (w *world) retryDue(n int) {
	w.t.Helper()
	w.exec(`update trapeze.parked set run_after = now() - interval '1 ms' where why in ('scheduled', 'retry', 'snooze')`)
	w.promote(n)
}

func TestOrderedRetryKeepsSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(ordered("s"), about("s"))
	urgent := w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 50 })[0]
	w.missed(1) // before its first claim, an ordered job yields like any other
	w.missed(0)
	c := w.claimOne(podID)
	w.is.Equal(c.ID, urgent)
	w.end(podID, ending(c))
	c = w.claimOne(podID)
	w.is.Equal(c.ID, ids[0])
	w.is.True(c.Ordered)
	urgent = w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 50 })[0]
	for _, park := range []func(){
		func() { w.again(podID, c) },
		func() {
			w.is.NoErr(second(w.Snooze(w.ctx(), leaseOf(podID, c), 1, time.Hour, store.Retry{Message: "later"})))
		},
	} {
		park()
		w.missed(0)
		w.is.Equal(len(w.claims(podID, 5)), 0)
		w.is.True(w.at(ids[0]).IsCurrent)
		w.is.Equal(w.count(`select count(*) from trapeze.subjects where state = 'held' and job_id = $1`, ids[0]), 1)
		list, err := view.Blockers(w.ctx(), w.Store, urgent, func(context.Context) ([]view.BoardSlots, error) { return nil, nil })
		w.is.NoErr(err)
		w.is.Equal(list[0].Why, job.BlockerSubject)
		w.is.Equal(*list[0].JobID, ids[0])
		w.is.True(list[0].Until.After(time.Now()))
		ended, err := upkeep.ReconcileGuards(w.ctx(), w.Store, 10)
		w.is.NoErr(err)
		w.is.Equal(len(ended), 0)
		w.retryDue(1)
		w.missed(0) // the more urgent job does not take the subject from the pending one either
		w.stands(ids[0], "pending")
		c = w.claimOne(podID)
		w.is.Equal(c.ID, ids[0])
	}
	w.end(podID, ending(c))
	c = w.claimOne(podID)
	w.is.Equal(c.ID, urgent)
	w.is.NoErr(second(w.Park(w.ctx(), leaseOf(podID, c), time.Hour, store.Retry{Message: "boom"}))) // it is not ordered
	w.missed(1)
	w.is.Equal(w.claimOne(podID).ID, ids[1])
}

func TestSkippedOrderedJob(t *testing.T) {
	t.Parallel()
	for name, skip := range map[string]func(w *world, id int64){
		"cancel": func(w *world, id int64) {
			w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)))
		},
		"cancel many": func(w *world, id int64) {
			w.is.NoErr(second(admin.CancelMany(w.ctx(), w.Store, []int64{id}, job.ReasonCancelled, "ann", nil)))
		},
		"cancel a due one": func(w *world, id int64) {
			w.retryDue(1)
			w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)))
		},
		"too old": func(w *world, id int64) {
			w.exec(`update trapeze.parked set run_after = now() - interval '2 days', why = 'key', key = 'a' where id = $1`, id)
			ended, _ := w.overdue(10)
			w.is.Equal(ended, []int64{id})
		},
		"too old, pending": func(w *world, id int64) {
			w.retryDue(1)
			w.exec(`update trapeze.live set ready_at = now() - interval '2 days' where id = $1`, id)
			ended, _ := w.overdue(10)
			w.is.Equal(ended, []int64{id})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			ids := w.put(ordered("s"), ordered("s"))
			w.again(podID, w.claimOne(podID))
			skip(w, ids[0])
			w.is.Equal(w.count(`select count(*) from trapeze.subjects where state = 'free' and job_id = $1`, ids[0]), 1) // it counts as the latest run
			w.missed(1)
			w.is.Equal(w.claimOne(podID).ID, ids[1])
		})
	}
}

func TestOrderedJobWithKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 1)`)
	both := func(n *store.NewJob) { n.Subject, n.Key, n.Ordered = "s", "a", true }
	ids := w.put(both, both)
	w.is.Equal(w.admitKeys("a"), 1)
	w.again(podID, w.claimOne(podID))
	w.is.Equal(w.admitKeys("a"), 0) // the place is free, the subject is not
	w.stands(ids[1], "subject")
	w.put(func(n *store.NewJob) { n.Key, n.Priority = "a", 50 })
	w.is.Equal(w.admitKeys("a"), 1)
	w.retryDue(2)           // two lines
	w.stands(ids[0], "key") // it holds the subject, and waits for a place
	ended, err := upkeep.ReconcileGuards(w.ctx(), w.Store, 10)
	w.is.NoErr(err)
	w.is.Equal(len(ended), 0)
	c := w.claimOne(podID)
	w.is.Equal(c.Subject, "")
	w.end(podID, ending(c))
	w.stands(ids[0], "pending")

	moved, _, err := admin.Move(w.ctx(), w.Store, admin.Moving{From: "default", To: "other"}, "ann") // it loses its place, and keeps the subject
	w.is.NoErr(err)
	w.is.Equal(moved, 2)
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "other", N: 5}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), ids[:1])
	w.end(podID, ending(found.Jobs[0]))
	w.missed(0)
	w.stands(ids[1], "pending")
}

func TestInterruptedOrderedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(ordered("s"))
	c := w.claimOne(podID)
	w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 50 })
	w.is.NoErr(second(w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, "why")))
	w.missed(0)
	w.is.Equal(w.claimOne(podID).ID, ids[0])
	other := w.pod("b")
	w.dies(podID, other)
	w.missed(0)
	w.is.Equal(w.claimOne(other).ID, ids[0])
}
