package store_test

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// within lets a job fail unless it starts within an hour. The tests then move the limits of jobs.
func within(changes ...func(*store.NewJob)) func(*store.NewJob) {
	return func(n *store.NewJob) {
		n.StartMillis = time.Hour.Milliseconds()
		for _, change := range changes {
			change(n)
		}
	}
}

// late moves the time limits of all jobs into the past.
func (w *world) late() {
	w.t.Helper()
	w.exec(`with live as (update trapeze.live set start_by = now() - interval '1 us' where start_by is not null)
		update trapeze.parked set start_by = now() - interval '1 us' where start_by is not null`)
}

// ends returns how the jobs ended that cannot start in time.
func (w *world) expired() map[int64]job.Reason {
	w.t.Helper()
	list, err := upkeep.EndOverdue(w.ctx(), w.Store, aDay, 100)
	w.is.NoErr(err)
	ended := map[int64]job.Reason{}
	for _, o := range list {
		w.is.True(o.Ended != nil)
		ended[o.ID] = o.Ended.Reason
	}
	return ended
}

func TestExpiryInEveryState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.kinds (kind, on_failure) values ('k', '[{"kind":"alarm","args":{},"when":"failed"}]')`)
	blocker := w.put(about("s"))[0]
	w.is.Equal(w.claimOne(podID).ID, blocker)
	free := w.put(about("s"), keyed("a"))
	ids := w.put(within(), within(about("s")), within(keyed("a")), within(about("t")), within(func(n *store.NewJob) { n.NeedsApproval = true }),
		within(func(n *store.NewJob) { n.DelayMillis = 1 }), within(func(n *store.NewJob) { n.UniqueWhile, n.UniqueKey = ptr("active"), ptr("u") }))
	w.is.Equal(len(w.expired()), 0)
	w.late()
	w.is.Equal(len(w.claims(podID, 10)), 0) // a claim takes none of them
	w.promote(1)
	w.is.Equal(len(w.claims(podID, 10)), 0)
	ended := w.expired()
	w.is.Equal(len(ended), len(ids))
	for _, id := range ids {
		w.is.Equal(ended[id], job.ReasonExpired)
		j := w.at(id)
		w.is.Equal(j.State, job.Failed)
		w.is.Equal(*j.ErrorClass, job.ClassDeadline)
		w.is.Equal(j.Attempt, 0)
	}
	w.is.Equal(w.count(`select count(*) from trapeze.jobs where kind = 'alarm'`), len(ids)) // their failure steps follow
	w.is.Equal(w.count(`select count(*) from trapeze.subjects where state = 'held'`), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.unique_keys`), 0)
	w.missed(1) // the job with the same key
	w.stands(free[0], "subject")
	w.is.Equal(len(w.expired()), 0)
}

func TestStartInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID, other := w.pod("a"), w.pod("b")
	list := w.new(within())
	list[0].Starts = true
	at, err := w.Enqueue(w.ctx(), podID, list)
	w.is.NoErr(err)
	w.is.Equal(at[list[0].ID], store.PlacedRunning)
	id := w.put(within())[0]
	c := w.claimOne(podID)
	w.is.Equal(c.ID, id)
	w.late()
	w.is.Equal(len(w.expired()), 0) // they run
	w.is.NoErr(second(w.Park(w.ctx(), leaseOf(podID, c), 0, store.Retry{Message: "boom"})))
	w.is.Equal(len(w.expired()), 0)
	w.promote(1)
	c = w.claimOne(podID) // a retry has no limit
	w.is.Equal(c.ID, id)
	w.is.NoErr(second(w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, "why")))
	w.is.Equal(len(w.expired()), 0)
	w.is.Equal(w.claimOne(podID).ID, id)
	w.dies(podID, other)
	w.is.Equal(len(w.expired()), 0)
	w.is.Equal(len(w.claims(other, 5)), 2)
}

func TestLimitedStartNotAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(within(), plain)
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", Ahead: 5}}, []string{"k"}, []string{"k"}, false)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 0) // a job that is claimed ahead could start too late
}

func TestLimitKeptOnTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	first := w.put(about("s"))[0]
	ids := w.put(within(about("s")), within(keyed("a"), about("t")), within())
	moved := w.put(within(keyed("b")))
	w.is.Equal(w.admitKeys("a", "b"), 2)
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, ids[2], 50, false, "ann"))
	w.is.NoErr(second(admin.CancelMany(w.ctx(), w.Store, []int64{first}, job.ReasonCancelled, "ann", nil)))
	w.missed(1)
	w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 90 })
	w.missed(1) // the first job yields and waits again
	n, _, err := admin.Move(w.ctx(), w.Store, admin.Moving{From: "default", To: "other"}, "ann")
	w.is.NoErr(err)
	w.is.Equal(n, 5)
	w.is.Equal(w.count(`select count(*) from (select start_by from trapeze.live union all select start_by from trapeze.parked) s where start_by > now()`), 4)
	w.late()
	w.is.Equal(len(w.expired()), len(ids)+len(moved))
	_ = podID
}

func TestClaimRacesWithExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(within(), within())
	w.late()
	w.exec(`update trapeze.live set start_by = now() + interval '1 hour' where id = $1`, ids[0])
	release := w.freeze(`select from trapeze.live where id = $1 for update`, ids[1])
	ended, passed := w.overdue(10)
	w.is.Equal(len(ended)+len(passed), 0) // a locked row is left to the next run
	release(false)
	w.is.Equal(w.claimOne(podID).ID, ids[0])
	ended, _ = w.overdue(10)
	w.is.Equal(ended, ids[1:])
}
