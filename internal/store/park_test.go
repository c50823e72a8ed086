package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestPromotedJobFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	delayed := func(ms int64) func(*store.NewJob) { return func(n *store.NewJob) { n.DelayMillis = ms } }
	ids := w.put(delayed(3), delayed(1), delayed(2), delayed(3_600_000))
	retried := w.put(func(n *store.NewJob) { n.Priority, n.Subject = 20, "s" })
	c := w.claimOne(podID)
	_, err := w.Park(w.ctx(), leaseOf(podID, c), 0, store.Retry{Message: "boom"})
	w.is.NoErr(err)
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.True(beat.NextDue != nil) // heartbeats report the earliest due time
	w.exec(`update trapeze.parked set run_after = now() - interval '1 hour' + (run_after - created_at) * 60
		from trapeze.jobs j where j.id = parked.id and run_after < now() + interval '1 minute'`)
	w.promote(4)
	w.promote(0) // no job is due anymore
	late := w.put(plain)
	var order []int64
	for range 5 {
		order = append(order, w.claimOne(podID).ID)
	}
	w.is.Equal(order, slices.Concat(retried, []int64{ids[1], ids[2], ids[0]}, late)) // jobs are promoted in the order in which they became due
	w.is.Equal(w.at(retried[0]).Fence, int64(2))
	w.is.Equal(w.at(ids[3]).State, job.Pending)
}

func TestConcurrentPromotions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	for range 50 {
		w.put(func(n *store.NewJob) { n.DelayMillis = 1 })
	}
	w.exec(`update trapeze.parked set run_after = now() - interval '1 s'`)
	promote := func() (n int, err error) {
		pending, _, err := w.Promote(w.ctx(), 30)
		return len(pending), err
	}
	x, y := async(promote), async(promote)
	nx, err := x()
	w.is.NoErr(err)
	ny, err := y()
	w.is.NoErr(err)
	rest, _, err := w.Promote(w.ctx(), 100)
	w.is.NoErr(err)
	w.is.Equal(nx+ny+len(rest), 50)
	w.is.Equal(len(w.claims(podID, 100)), 50)
}

func TestCancelledJobRetryHandBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(plain)[0]
	c := w.claimOne(podID)
	_, err := admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	_, err = w.Park(w.ctx(), leaseOf(podID, c), time.Hour, store.Retry{Message: "boom"})
	w.is.True(err != nil) // the job cannot be parked
	back, err := w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, "why")
	w.is.NoErr(err)
	w.is.Equal(len(back), 0) // the job cannot be handed back
	_, err = store.Hold(w.ctx(), w.Store, w.pool, leaseOf(podID, c), time.Minute, false)
	w.is.True(err != nil) // its handler can no longer write
	end, ok := w.end(podID, ending(c))
	w.is.True(ok)
	w.is.Equal(end.State, job.Cancelled)
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(len(beat.Cancels), 0) // no notification is left
}

func TestStopOfRunningJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(about("s"))[0]
	c := w.claimOne(podID)
	_, err := admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	got, err := admin.Cancel(w.ctx(), w.Store, id, 0, true, "bob", ignoreLease)
	w.is.NoErr(err)
	w.is.Equal(got.State, job.Cancelled)
	w.is.Equal(*w.at(id).Reason, job.ReasonForceCancelled)
	_, ok := w.end(podID, ending(c))
	w.is.True(!ok) // the late result is rejected
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(beat.Cancels, []store.CancelRequest{{id, 1, job.ReasonForceCancelled}})
	w.put(about("s"))
	w.is.Equal(len(w.claims(podID, 1)), 1) // its subject is free
}

func TestHistoryOrderOfNotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(plain)[0]
	c := w.claimOne(podID)
	w.is.NoErr(w.Emit(w.ctx(), leaseOf(podID, c), store.Emission{Event: "file.opened", Level: "warn", Message: "old format", Fields: []byte(`{"rows":3}`),
		At: time.Now().Round(0).Add(time.Hour)})) // by a clock that is ahead
	w.is.NoErr(w.Progress(w.ctx(), leaseOf(podID, c), job.Progress{Done: ptr(int64(1)), Total: ptr(int64(3))}))
	w.is.NoErr(w.Progress(w.ctx(), leaseOf(podID, c), job.Progress{Done: ptr(int64(2)), Message: ptr("half")}))
	p := w.at(id).Progress
	w.is.Equal([]int64{*p.Done, *p.Total}, []int64{2, 3}) // a nil field leaves the stored value unchanged
	w.end(podID, ending(c))
	list, err := view.JobEvents(w.ctx(), w.Store, id, 1, 10)
	w.is.NoErr(err)
	var names []string
	for _, e := range list {
		names = append(names, e.Event)
	}
	w.is.Equal(names, []string{"job.claimed", "file.opened", "job.succeeded"})
	w.is.True(!list[1].At.After(list[2].At))
	pgtest.Wait(t, "the feed to go on after its cursor, without gap or repeat", func() bool {
		after, err := view.Events(w.ctx(), w.Store, 0, list[0].Cursor, 10)
		w.is.NoErr(err)
		return len(after) == 2 // the feed continues only after older transactions on the same server have ended
	})
	after, err := view.Events(w.ctx(), w.Store, id, list[1].Cursor, 10)
	w.is.NoErr(err)
	w.is.Equal(len(after), 1)
}

// A job that has crashed too often to run beside another suspect must still run alone after a retry.
func TestAPromotedJobStaysIsolated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(plain)[0]
	c := w.claimOne(podID)
	w.exec(`update trapeze.live set isolated = true where id = $1`, id)
	_, err := w.Park(w.ctx(), leaseOf(podID, c), 0, store.Retry{Message: "boom"})
	w.is.NoErr(err)
	w.promote(1)
	w.is.True(w.claimOne(podID).Isolated)
}
