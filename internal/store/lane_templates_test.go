package store_test

import (
	"errors"
	"fmt"
	"strings"
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

func (w *world) texts(sql string) []string {
	w.t.Helper()
	found, err := w.pool.Query(w.ctx(), sql)
	w.is.NoErr(err)
	list, err := pgx.CollectRows(found, pgx.RowTo[string])
	w.is.NoErr(err)
	return list
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

// A limit of a template applies to its lanes, and a lane that a handler holds stays held whatever the template's rate becomes.
func TestTemplateLimitsReachLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{})
	set := func(name, key string, c job.KeyLimitChange) {
		t.Helper()
		c.LimitOf = job.LimitOf{Scope: job.LaneScope, Name: name, Key: key}
		_, err := admin.SetLimit(w.ctx(), w.Store, c, "ann")
		w.is.NoErr(err)
	}
	limits := func() []string {
		t.Helper()
		return w.texts(`select name || ' ' || key || ' ' || concat_ws(' ', slots, rate, per, burst) from trapeze.limits where name similar to 't/[12]' order by name, key`)
	}
	hourly := job.KeyLimitChange{Rate: job.To(1), Per: new(job.Seconds(time.Hour)), Burst: new(3)}
	set("t/*", "", hourly)
	w.firstIn("t/1")
	w.firstIn("t/2")
	set("t/2", "", job.KeyLimitChange{Rate: job.To(7)}) // t/2 does not follow any more
	set("t/*", "*", job.KeyLimitChange{Slots: job.To(2)})
	w.is.Equal(limits(), []string{"t/1  1 01:00:00 3", "t/1 * 2", "t/2  7 01:00:00 3"})
	starts, err := store.TakeStarts(w.ctx(), w.Store, []store.Want{{Lane: "t/1", N: 3}})
	w.is.NoErr(err)
	w.is.Equal(starts["t/1"].N, 3)
	faster := hourly
	faster.Per = new(job.Seconds(time.Second))
	set("t/*", "", faster)
	w.is.Equal(w.count(`select count(*) from trapeze.limits where name = 't/1' and key = '' and next_start <= now() + interval '4 seconds'`), 1) // three starts, not three hours
	w.is.NoErr(store.HoldLane(w.ctx(), w.Store, "t/1", time.Hour))
	set("t/*", "", job.KeyLimitChange{}.Whole())
	set("t/*", "*", job.KeyLimitChange{}.Whole())
	w.is.Equal(limits(), []string{"t/1  ", "t/2  7 01:00:00 3"})
	starts, err = store.TakeStarts(w.ctx(), w.Store, []store.Want{{Lane: "t/1", N: 3}})
	w.is.NoErr(err)
	w.is.Equal(starts["t/1"].N, 0) // still held
	w.empty()
	w.is.Equal(w.retire(0)+w.retire(0), 0)
	w.exec(`update trapeze.limits set held_until = now() - interval '1 second' where name = 't/1'`)
	w.is.Equal(w.retire(0)+w.retire(0), 1)
	w.is.Equal(limits(), []string{"t/2  7 01:00:00 3"})
}

func TestDeletionMakesTargetLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{Slots: job.To(2)})
	w.firstIn("t/9")
	_, err := admin.DeleteLane(w.ctx(), w.Store, "t/9", "u/1", "ann", false)
	w.is.True(errors.Is(err, job.ErrUnknownLane) && strings.Contains(err.Error(), `"u/1"`))
	done, err := admin.DeleteLane(w.ctx(), w.Store, "t/9", "t/10", "ann", false)
	w.is.NoErr(err)
	w.is.Equal(done.Moved, 1)
	w.is.Equal(w.texts(`select l.lane || ' ' || n.slots || ' ' || n.template from trapeze.live l join trapeze.lanes n on n.name = l.lane`), []string{"t/10 2 t/*"})
}

// The heartbeat of thousands of lanes stays small, and all the lanes go when they are empty.
func TestThousandsOfMadeLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.set("tenant/*", job.LaneChange{Slots: job.To(2)})
	var list []func(*store.NewJob)
	for i := range 2000 {
		list = append(list, func(n *store.NewJob) { n.Lane, n.DelayMillis = fmt.Sprint("tenant/", 10_000+i), 1 })
	}
	w.put(list...)
	w.exec(`update trapeze.parked set run_after = now() - interval '1 second'`)
	_, _, err := w.Promote(w.ctx(), 2000)
	w.is.NoErr(err)
	b, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(len(b.Lanes), 2001)
	w.is.Equal(b.Lanes[1], store.Lane{Name: "tenant/10000", Slots: new(2), Free: 2, Enabled: true, Template: "tenant/*"})
	w.is.Equal(w.retire(0), 0)
	w.empty()
	w.is.Equal(w.retire(0), 0)
	w.is.Equal(w.retire(0), 2000)
}

func TestEmptyMadeLanesGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("t/*", job.LaneChange{})
	w.firstIn("t/1")
	w.is.Equal(w.retire(0), 0) // it has a job
	w.is.Equal(w.retire(0), 0)
	w.empty()
	w.is.Equal(w.retire(time.Hour)+w.retire(time.Hour), 0) // marked, but not for an hour
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
