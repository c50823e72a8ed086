package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func (w *world) set(lane string, c job.LaneChange) {
	w.t.Helper()
	_, _, err := admin.SetLane(w.ctx(), w.Store, lane, c, "ann")
	w.is.NoErr(err)
}

func (w *world) retire(idle time.Duration) int {
	w.t.Helper()
	n, err := admin.FollowTemplates(w.ctx(), w.Store, idle)
	w.is.NoErr(err)
	return n
}

func (w *world) empty() {
	w.exec(`delete from trapeze.live`)
	w.exec(`delete from trapeze.jobs`)
}

// firstIn submits a job as a pod does that does not know the lane, and promotes it.
func (w *world) firstIn(lane string) {
	w.t.Helper()
	w.put(func(n *store.NewJob) { n.Lane, n.DelayMillis = lane, 1 })
	w.exec(`update trapeze.parked set run_after = now() - interval '1 second'`)
	_, _, err := w.Promote(w.ctx(), 100)
	w.is.NoErr(err)
}

func TestLanesFollowTheirTemplate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{Slots: job.To(2)})
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 't/*', '*', 3)`)
	w.firstIn("t/1")
	w.firstIn("t/2")
	w.set("t/2", job.LaneChange{})
	w.set("t/*", job.LaneChange{Slots: job.To(5)})
	w.is.Equal(w.count(`select slots from trapeze.lanes where name = 't/1'`), 5)
	w.is.Equal(w.count(`select slots from trapeze.lanes where name = 't/2'`), 2) // it was set by hand
	w.is.Equal(w.count(`select slots from trapeze.limits where name = 't/1' and key = '*'`), 3)
	w.exec(`update trapeze.lanes set slots = 4 where name = 't/1'`) // as if it had been made while the template changed
	w.exec(`update trapeze.limits set slots = 7 where name = 't/*'`)
	w.retire(time.Hour)
	w.is.Equal(w.count(`select slots from trapeze.lanes where name = 't/1'`), 5)
	w.is.Equal(w.count(`select slots from trapeze.limits where name = 't/1' and key = '*'`), 7)
}

func TestEmptyMadeLanesGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{})
	w.firstIn("t/1")
	w.is.Equal(w.retire(0), 0) // it has a job
	w.is.Equal(w.retire(0), 0)
	w.empty()
	w.is.Equal(w.retire(0), 0) // marked
	w.is.Equal(w.count(`select count(*) from trapeze.lanes where idle_since is not null`), 1)
	w.firstIn("t/1") // removes the mark
	w.is.Equal(w.count(`select count(*) from trapeze.lanes where idle_since is not null`), 0)
	w.empty()
	w.exec(`update trapeze.lanes set drained = true where name = 't/1'`)
	w.is.Equal(w.retire(0)+w.retire(0), 0)
	w.exec(`update trapeze.lanes set drained = false where name = 't/1'`)
	w.is.Equal(w.retire(0)+w.retire(0), 1)
	w.put(func(n *store.NewJob) { n.Lane = "t/1" }) // a transaction that was open for long
	_, made, err := admin.MoveStranded(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(made, 1)
	w.is.Equal(w.count(`select count(*) from trapeze.live l join trapeze.lanes n on n.name = l.lane`), 1)
}

// A promotion that has not committed keeps its lane.
func TestDeletionDuringPromotion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{})
	w.firstIn("t/1")
	w.empty()
	w.retire(time.Hour)
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) error {
		_, err := tx.Exec(w.ctx(), `update trapeze.lanes set idle_since = null where name = 't/1'`) // as a promotion
		w.is.Equal(w.retire(0), 0)
		return err
	}))
	w.is.Equal(w.count(`select count(*) from trapeze.lanes where name = 't/1'`), 1)
}

// Whatever deletions, promotions and changes of the template do at the same time, each pending job has a lane.
func TestMadeLanesUnderRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{Slots: job.To(1)})
	for round := range 25 {
		w.put(func(n *store.NewJob) { n.Lane, n.DelayMillis = "t/1", 1 }, func(n *store.NewJob) { n.Lane, n.DelayMillis = "t/2", 1 })
		w.exec(`update trapeze.parked set run_after = now() - interval '1 second'`)
		w.exec(`update trapeze.lanes set idle_since = now() - interval '1 hour' where template is not null`)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, _, err := w.Promote(w.ctx(), 1); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if _, err := admin.FollowTemplates(w.ctx(), w.Store, time.Minute); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if _, _, err := admin.SetLane(w.ctx(), w.Store, "t/*", job.LaneChange{Slots: job.To(round + 2)}, "ann"); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		w.is.Equal(w.count(`select count(*) from trapeze.live l where not exists (select from trapeze.lanes n where n.name = l.lane)`), 0)
		w.empty()
	}
}
