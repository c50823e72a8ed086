package store_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func TestMoveOrderAndLockedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	urgent := func(n *store.NewJob) { n.Priority = 50 }
	first, second, third := w.put(plain)[0], w.put(plain)[0], w.put(urgent)[0]
	release := w.freeze(`select from trapeze.live where id = $1 for update`, first)

	moved, skipped, err := admin.Move(w.ctx(), w.Store, admin.Moving{From: "default", To: "other"}, "ann")
	w.is.NoErr(err)
	w.is.Equal([]int{moved, skipped}, []int{2, 1})
	w.is.Equal(w.at(first).Lane, "default") // the transaction that locked the job may be about to start it there
	release(false)
	moved, skipped, err = admin.Move(w.ctx(), w.Store, admin.Moving{From: "default", To: "other"}, "ann")
	w.is.NoErr(err)
	w.is.Equal([]int{moved, skipped}, []int{1, 0})

	podID := w.pod("a")
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "other", N: 3}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{third, first, second}) // by priority, then in order of submission
	moved, _, err = admin.Move(w.ctx(), w.Store, admin.Moving{From: "other", To: "default"}, "ann")
	w.is.NoErr(err)
	w.is.Equal(moved, 0) // running jobs stay in the lane whose slots they use
}

// A claim skips a row that is being moved, and no longer finds it in the lane afterwards.
func TestClaimDuringMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	id, podID := w.put(plain)[0], w.pod("a")
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) error {
		_, err := tx.Exec(w.ctx(), `update trapeze.live set lane = 'other' where id = $1`, id)
		w.is.Equal(len(w.claims(podID, 1)), 0) // the row is locked
		return err
	}))
	w.is.Equal(len(w.claims(podID, 1)), 0)
	w.is.Equal(w.at(id).State, job.Pending)
	w.is.Equal(w.at(id).Lane, "other")
}

func TestMoveStrandedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('careful')`)
	w.exec(`insert into trapeze.lane_kinds values ('k', 'careful')`)
	in := func(lane string) func(*store.NewJob) { return func(n *store.NewJob) { n.Lane = lane } }
	ids := w.put(in("gone"), in("lost"), in("default"), in("gone"))
	n, _, err := admin.MoveStranded(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(n, 3)
	for i, lane := range []string{"careful", "careful", "default", "careful"} {
		w.is.Equal(w.at(ids[i]).Lane, lane)
	}
	n, _, err = admin.MoveStranded(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(n, 0)
}

// A parked job moves from a lane that does not exist once it is due, even if its subject is still taken.
func TestMoveStrandedParkedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(about("s"))
	w.claimOne(w.pod("a"))
	later := func(n *store.NewJob) { n.Lane, n.DelayMillis = "gone", 3_600_000 }
	asks := func(n *store.NewJob) { n.Lane, n.Subject, n.NeedsApproval = "gone", "s", true }
	for _, change := range []func(*store.NewJob){inLane("gone", "s"), later, func(n *store.NewJob) { later(n); n.Subject = "s" }, asks} {
		id := w.put(change)[0]
		w.exec(`update trapeze.parked set run_after = now() where id = $1`, id)
		if w.at(id).State == job.AwaitingApproval {
			w.is.NoErr(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob"))
		}
		_, _, err := w.Promote(w.ctx(), 10)
		w.is.NoErr(err)
		n, _, err := admin.MoveStranded(w.ctx(), w.Store)
		w.is.NoErr(err)
		w.is.Equal(n, 1)
		w.is.Equal(w.at(id).Lane, "default")
	}
}

// All lanes, including the default lane to which a deleted lane's kinds move, are locked before kinds. Otherwise, two changes could
// deadlock.
func TestDeletedLaneLockOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('old')`)
	w.exec(`insert into trapeze.lane_kinds values ('k', 'old')`)
	release := w.freeze(`select from trapeze.lanes where name = 'default' for update`)
	deleted := async(func() (job.LaneChanged, error) { return admin.DeleteLane(w.ctx(), w.Store, "old", "", "ann", false) })
	w.waiting(1)
	w.exec(`select from trapeze.lane_kinds where kind = 'k' for update nowait`)
	release(true)
	_, err := deleted()
	w.is.NoErr(err)
	w.is.Equal(w.count(`select count(*) from trapeze.lane_kinds where lane = 'default'`), 1)
}

// A move reads a page and then locks its rows one after another. A job that is claimed in between keeps its lane, whose slot it uses.
func TestJobClaimedDuringLaneMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	podID, first, second := w.pod("a"), w.put(plain)[0], w.put(func(n *store.NewJob) { n.Priority = 50 })[0]
	w.exec(`create function public.halt() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(7); return new; end $$`)
	w.exec(`create trigger halt before update on trapeze.live for each row when (old.lane <> new.lane) execute function public.halt()`)
	release := w.freeze(`select pg_advisory_xact_lock(7)`)
	move := async(func() (n int, err error) {
		n, _, err = admin.Move(context.Background(), w.Store, admin.Moving{From: "default", To: "other"}, "ann")
		return n, err
	})
	w.waiting(1) // the move has read both jobs and locked the first
	w.is.Equal(w.claimOne(podID).ID, second)
	release(false)
	moved, err := move()
	w.is.NoErr(err)
	w.is.Equal(moved, 1)
	w.is.Equal(w.at(first).Lane, "other")
	w.is.Equal(w.at(second).Lane, "default")
}
