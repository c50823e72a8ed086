package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestGuardsInOppositeOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var keys []store.Line
	var changes []func(*store.NewJob)
	for i := range 20 {
		w.waits(about(fmt.Sprint("s", i+10)))
		keys = append(keys, store.Line{Kind: "k", Subject: fmt.Sprint("s", i+10)})
		changes = append(changes, func(n *store.NewJob) { n.Subject, n.Priority = fmt.Sprint("s", 29-i), 20 })
	}
	list := w.new(changes...)
	// Both statements are waiting for the first subject, which another transaction has reserved.
	release := w.freeze(`insert into trapeze.subjects values ('k', 's10', -1, 'held')`)
	up := async(func() (store.Admitted, error) { return w.Admit(context.Background(), keys) })
	down := async(func() (map[int64]store.Place, error) { return w.Enqueue(context.Background(), uuid.NewString(), list) })
	w.waiting(2)
	release(false)
	x, err := up()
	w.is.NoErr(err)
	y, err := down()
	w.is.NoErr(err)
	pending := 0
	for _, place := range y {
		if place == store.PlacedPending {
			pending++
		} else {
			w.is.Equal(place, store.PlacedWaiting)
		}
	}
	w.is.Equal(len(x.Jobs)+pending, 20) // each subject went to one of the two statements
	w.is.Equal(len(x.Again), pending)
	w.is.Equal(w.deadlocks(), 0)
}

// deadlocks returns the number of deadlocks that PostgreSQL has resolved in this database. The store's retries would hide them.
func (w *world) deadlocks() int {
	w.t.Helper()
	return w.count(`select deadlocks from pg_stat_database where datname = current_database()`)
}

func TestFinishDeadlockCrossingParents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("S1"), about("S2"))
	claims := w.claims(podID, 2)
	one, two := claims[0], claims[1]
	toTwo := endingWith(one, w.new(then(one, about("S2")))[0])
	toOne := endingWith(two, w.new(then(two, about("S1")))[0])
	release := w.freeze(`select from trapeze.subjects for update`)
	finish := func(e store.Ending) func() (map[int64]store.Ended, error) {
		return async(func() (map[int64]store.Ended, error) { return w.Finish(context.Background(), podID, []store.Ending{e}) })
	}
	x, y := finish(toTwo), finish(toOne)
	w.waiting(2) // both statements have taken their snapshots, in which both subjects are running
	release(false)
	ex, err := x()
	w.is.NoErr(err)
	ey, err := y()
	w.is.NoErr(err)
	w.is.Equal(len(ex)+len(ey), 2)
	w.is.Equal(w.deadlocks(), 0)
	w.missed(2)
	w.is.Equal(len(w.claims(podID, 5)), 2) // both children can run now
}

func TestFinishDeadlockSameSubjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain, plain, plain, plain)
	c := w.claims(podID, 4)
	batch := func(x, y *store.Claimed, first, second string) []store.Ending {
		return []store.Ending{endingWith(x, w.new(then(x, about(first)))[0]), endingWith(y, w.new(then(y, about(second)))[0])}
	}
	b1, b2 := batch(c[0], c[1], "m", "n"), batch(c[2], c[3], "n", "m")
	release := w.freeze(`insert into trapeze.subjects values ('k', 'm', -1, 'held')`)
	finish := func(list []store.Ending) func() (map[int64]store.Ended, error) {
		return async(func() (map[int64]store.Ended, error) { return w.Finish(context.Background(), podID, list) })
	}
	x, y := finish(b1), finish(b2)
	w.waiting(2)
	release(false)
	ex, err := x()
	w.is.NoErr(err)
	ey, err := y()
	w.is.NoErr(err)
	running := 0
	for _, ended := range []map[int64]store.Ended{ex, ey} {
		w.is.Equal(len(ended), 2)
		for _, e := range ended {
			if e.ChildRunning {
				running++
			}
		}
	}
	w.is.Equal(running, 2) // for each subject, one child runs and the other waits
	w.is.Equal(w.deadlocks(), 0)
}

func TestCancelCommittedBeforeFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(about("s"))[0]
	c := w.claimOne(podID)
	// When the finish arrives, the cancel has changed the row but has not been committed yet.
	release := w.freeze(`with asked as (update trapeze.live set cancel_requested = true, event_no = event_no + 1 where id = $1
			returning id, fence, event_no)
		insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event)
		select id, event_no, fence, 'running', 'running', 'job.cancel_requested' from asked`, id)
	child := w.new(then(c))[0]
	e := endingWith(c, child)
	e.Result = json.RawMessage(`1`)
	_, ok := w.end(podID, e)
	w.is.True(!ok) // the row is locked, and is skipped so that the rest of a batch does not have to wait
	at, err := w.ClaimOutcomes(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, []int64{child.ID}, false)
	w.is.NoErr(err)
	w.is.True(at[id].Held) // the finish must be resent
	release(true)
	end, ok := w.end(podID, e)
	w.is.True(ok)
	w.is.Equal(end, store.Ended{State: job.Cancelled})
	_, err = view.Job(w.ctx(), w.Store, child.ID)
	w.is.True(errors.Is(err, job.ErrNotFound)) // no child was inserted
	w.is.Equal(len(w.claims(podID, 5)), 0)
	w.put(about("s"))
	w.is.Equal(len(w.claims(podID, 5)), 1) // the subject is free
}

func TestCancelWaitingForFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(plain)[0]
	c := w.claimOne(podID)
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = w.FinishIn(w.ctx(), tx, podID, ending(c))
	w.is.NoErr(err)
	cancel := async(func() (admin.Cancellation, error) {
		return admin.Cancel(context.Background(), w.Store, id, 0, true, "ann", ignoreLease)
	})
	w.waiting(1)
	w.is.NoErr(tx.Commit(w.ctx()))
	got, err := cancel()
	w.is.True(errors.Is(err, job.ErrAlreadyTerminal))
	w.is.Equal(got.State, job.Succeeded)
}

func TestCancelWaitingForClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	id := w.put(plain)[0]
	release := w.freeze(`with claimed as (update trapeze.live set state = 'running', fence = 1, attempt = 1, pod = $2, event_no = 2
			where id = $1 returning id, fence, pod)
		insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event)
		select id, 2, fence, pod, 'pending', 'running', 'job.claimed' from claimed`, id, a)
	cancel := async(func() (admin.Cancellation, error) {
		return admin.Cancel(context.Background(), w.Store, id, 0, false, "ann", ignoreLease)
	})
	w.waiting(1)
	release(true)
	got, err := cancel()
	w.is.NoErr(err)
	w.is.Equal(got, admin.Cancellation{State: job.Running, Pod: &a, Fence: 1})
	beat, err := w.Heartbeat(w.ctx(), a, lease, false)
	w.is.NoErr(err)
	w.is.Equal(beat.Cancels, []store.CancelRequest{{id, 1, job.ReasonCancelled}})
}

// Two batches end branches of the same fan-out, and have next steps of the same subject.
func TestFinishDeadlockBranchesAndGuards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	w.fanOut(podID, w.claimOne(podID), store.FanOut{}, plain, plain)
	w.put(plain, plain, plain)
	c := w.claims(podID, 5)
	to := func(c *store.Claimed, subject string) store.Ending {
		return endingWith(c, w.new(then(c, about(subject)))[0])
	}
	b1 := []store.Ending{to(c[2], "m"), to(c[3], "n"), branchEnding(c[0], job.Succeeded)}
	b2 := []store.Ending{branchEnding(c[1], job.Succeeded), to(c[4], "m")}
	release := w.freeze(`insert into trapeze.subjects values ('k', 'n', -1, 'held')`)
	finish := func(list []store.Ending) func() (map[int64]store.Ended, error) {
		return async(func() (map[int64]store.Ended, error) { return w.Finish(context.Background(), podID, list) })
	}
	x := finish(b1)
	w.waiting(1) // it has inserted the guard of m
	y := finish(b2)
	w.waiting(2)
	release(false)
	ex, err := x()
	w.is.NoErr(err)
	ey, err := y()
	w.is.NoErr(err)
	w.is.Equal([]int{len(ex), len(ey)}, []int{3, 2})
	w.is.Equal(w.deadlocks(), 0)
}
