package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func TestUnrecoveredLapseNextHeartbeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	c := w.claimOne(a)
	w.lapse(a)
	beat, err := w.Heartbeat(w.ctx(), a, lease, false)
	w.is.NoErr(err)
	w.is.True(beat.Open)
	pending, _ := w.recover(b, 1000)
	w.is.Equal(pending, 0)
	_, ok := w.end(a, ending(c))
	w.is.True(ok)
}

func TestRecoveryDuringHeartbeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.lapse(a)
	release := w.freeze(`update trapeze.pods set lease_until = now() + interval '1 minute' where id = $1`, a)
	closed, err := store.CloseLapsed(w.ctx(), w.Store, b, lease, time.Time{})
	w.is.NoErr(err)
	w.is.Equal(len(closed), 0) // a locked row is skipped without waiting
	release(true)
	closed, err = store.CloseLapsed(w.ctx(), w.Store, b, lease, time.Time{})
	w.is.NoErr(err)
	w.is.Equal(len(closed), 0) // the heartbeat has renewed the lease
}

func TestLeaseFarInFuture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.exec(`update trapeze.pods set lease_until = now() + interval '1 year' where id = $1`, a)
	beat, err := w.Heartbeat(w.ctx(), b, lease, false)
	w.is.NoErr(err)
	w.is.True(!beat.NextLapse.After(beat.Now)) // the other pods learn that they must check for lapsed leases now
	closed, err := store.CloseLapsed(w.ctx(), w.Store, b, lease, time.Time{})
	w.is.NoErr(err)
	w.is.Equal(len(closed), 1)
}

func TestLeasesExpiredDuringOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, after, jumped, by := w.pod("before"), w.pod("after"), w.pod("jumped"), w.pod("by")
	w.exec(`update trapeze.pods set lease_until = now() - interval '20 s' where id = $1`, before)
	w.exec(`update trapeze.pods set lease_until = now() - interval '5 s' where id = $1`, after)
	w.exec(`update trapeze.pods set lease_until = now() + interval '1 hour' where id = $1`, jumped) // set by the clock of the failed server
	closed, err := store.CloseLapsed(w.ctx(), w.Store, by, lease, time.Now().Add(-10*time.Second))
	w.is.NoErr(err)
	w.is.Equal(len(closed), 1)
	w.is.Equal(closed[0].PodID, before)
	closed, err = store.CloseLapsed(w.ctx(), w.Store, by, lease, time.Time{})
	w.is.NoErr(err)
	w.is.Equal(len(closed), 2) // no lease is spared anymore
}

func TestClosedPodCallsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	c := w.claimOne(a)
	old := leaseOf(a, c)
	w.is.Equal(first(w.dies(a, b)), 1)
	refused := func(when string) {
		lost := func(err error) { w.t.Helper(); w.is.True(errors.Is(err, job.ErrLeaseLost)) }
		w.t.Log(when)
		beat, err := w.Heartbeat(w.ctx(), a, lease, false)
		w.is.NoErr(err)
		w.is.True(!beat.Open)              // heartbeats are rejected
		w.is.Equal(len(w.claims(a, 5)), 0) // claims find nothing
		_, ok := w.end(a, endingWith(c, w.new(then(c))[0]))
		w.is.True(!ok)
		lost(second(w.FinishIn(w.ctx(), w.pool, a, ending(c))))
		lost(w.Progress(w.ctx(), old, job.Progress{Done: ptr(int64(1))}))
		lost(second(w.Park(w.ctx(), old, 0, store.Retry{Message: "boom"})))
		lost(w.Keep(w.ctx(), old, []byte(`"late"`)))
		lost(w.Emit(w.ctx(), old, store.Emission{Event: "my.event"}))
		lost(second(store.Hold(w.ctx(), w.Store, w.pool, old, time.Minute, false))) // checkpoints use the transaction that Hold begins
		back, err := w.HandBack(w.ctx(), a, []job.Lease{old}, "late")
		w.is.NoErr(err)
		w.is.Equal(len(back), 0)
		held, err := w.Held(w.ctx(), a)
		w.is.NoErr(err)
		w.is.Equal(len(held), 0)
	}
	w.put(about("s"))
	refused("the job is pending again")
	again := w.claims(b, 1)[0]
	w.is.Equal(again.ID, c.ID)
	refused("another pod runs it")
	w.is.NoErr(w.StaleResult(w.ctx(), old, "succeeded"))
	w.end(b, ending(again))
	w.is.NoErr(w.StaleResult(w.ctx(), old, "succeeded")) // the history of a finished job does not change
	refused("it has ended")
}

// A pod may have sent a claim just before an operator drained it.
func TestADrainedPodClaimsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	w.put(plain)
	w.put(about("s"))
	drained := func(is bool) {
		_, err := w.pool.Exec(w.ctx(), `update trapeze.pods set drained = $1 where id = $2`, is, a)
		w.is.NoErr(err)
	}
	drained(true)
	w.is.Equal(len(w.claims(a, 5)), 0)
	drained(false)
	w.is.Equal(len(w.claims(a, 5)), 2)
}

func second[A, B any](_ A, b B) B { return b }

func TestBornRunningInClosedPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	parent := w.put(about("s"))[0]
	c := w.claimOne(a)
	w.lapse(a)
	_, err := store.CloseLapsed(w.ctx(), w.Store, b, lease, time.Time{})
	w.is.NoErr(err)
	list := w.new(plain, about("t"))
	list[0].Starts, list[1].Starts = true, true
	placed, err := w.Enqueue(w.ctx(), a, list)
	w.is.NoErr(err)
	w.is.Equal(placed[list[0].ID], store.PlacedPending) // the job must not start here, because recovery would not find it once the sweeps for pod a are over
	w.is.Equal(placed[list[1].ID], store.PlacedPending)
	child := w.new(then(c))[0]
	end, ok := w.end(a, endingWith(c, child))
	w.is.True(ok) // the pod is closed, but its result is accepted because the job has not been recovered yet
	w.is.True(!end.ChildRunning)
	w.is.Equal(w.at(parent).State, job.Succeeded)
	w.is.Equal(w.at(child.ID).State, job.Pending)
}

func TestClosedPodSweepIntervals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	w.lapse(a)
	pending, _ := w.recover(b, 1000)
	w.is.Equal(pending, 0)
	due := func(closed, swept string) bool {
		w.exec(`update trapeze.pods set closed_at = now() - $2::interval, swept_at = now() - $3::interval where id = $1`, a, closed, swept)
		podIDs, err := store.SweepsDue(w.ctx(), w.Store)
		w.is.NoErr(err)
		beat, err := w.Heartbeat(w.ctx(), b, lease, false)
		w.is.NoErr(err)
		w.is.Equal(beat.SweepIsDue, len(podIDs) == 1) // heartbeats and SweepsDue agree
		return len(podIDs) == 1
	}
	w.is.True(!due("1s", "1s"))
	w.is.True(due("3s", "3s"))   // the second sweep is due two seconds after the first one
	w.is.True(!due("10s", "5s")) // the previous sweep took place 5 s after the pod was closed, so the next one is due 5 + 2 s after it
	w.is.True(due("13s", "8s"))
	w.is.True(!due("9m", "4m"))
	w.is.True(due("9m", "5m"))
	w.is.True(!due("11m", "1m")) // the last sweep took place more than ten minutes after the pod closed, and no claim stays in flight that long
	w.is.True(due("3d", "2d 23h 59m"))

	// A claim was in flight when its pod was closed, and is committed after the first sweep.
	w.exec(`update trapeze.pods set closed_at = null, swept_at = null where id = $1`, a)
	w.claimOne(a)
	w.exec(`update trapeze.pods set closed_at = now() - interval '3 s', swept_at = now() - interval '3 s' where id = $1`, a)
	pending, _ = w.recover(b, 1000)
	w.is.Equal(pending, 1)
}
