package store

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

func TestAMoveKeepsEveryTurnAndPassesByWhatSomebodyHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	urgent := func(n *NewJob) { n.Priority = 50 }
	first, second, third := w.put(plain)[0], w.put(plain)[0], w.put(urgent)[0]
	release := w.freeze(`select from trapeze.live where id = $1 for update`, first)

	moved, passed, err := w.Move(w.ctx(), Moving{From: "default", To: "other"}, "ann")
	w.is.NoErr(err)
	w.is.Equal([]int{moved, passed}, []int{2, 1})
	w.is.Equal(w.at(first).Lane, "default") // whoever holds it may be starting it there
	release(false)
	moved, passed, err = w.Move(w.ctx(), Moving{From: "default", To: "other"}, "ann")
	w.is.NoErr(err)
	w.is.Equal([]int{moved, passed}, []int{1, 0})

	boot := w.pod("a")
	found, err := w.Claim(w.ctx(), boot, []Want{{Lane: "other", N: 3}}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{third, first, second}) // by priority, then as they were submitted
	moved, _, err = w.Move(w.ctx(), Moving{From: "other", To: "default"}, "ann")
	w.is.NoErr(err)
	w.is.Equal(moved, 0) // what runs stays where its slot is
}

// A claim waits for a row that is being moved, and finds it gone from its lane.
func TestAClaimDoesNotTakeAJobThatIsMovedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	id, boot := w.put(plain)[0], w.pod("a")
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) error {
		p, err := w.movePage(w.ctx(), tx, moveLiveSQL, Moving{From: "default", To: "other"}, 0, "ann")
		w.is.Equal(p.Moved, 1)
		w.is.Equal(len(w.claims(boot, 1)), 0) // it is held
		return err
	}))
	w.is.Equal(len(w.claims(boot, 1)), 0)
	w.is.Equal(w.at(id).State, job.Pending)
	w.is.Equal(w.at(id).Lane, "other")
}

func TestAJobOfNoLaneGoesToItsKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('careful')`)
	w.exec(`insert into trapeze.lane_kinds values ('k', 'careful')`)
	in := func(lane string) func(*NewJob) { return func(n *NewJob) { n.Lane = lane } }
	ids := w.put(in("gone"), in("lost"), in("default"), in("gone"))
	n, err := w.MoveStranded(w.ctx())
	w.is.NoErr(err)
	w.is.Equal(n, 3)
	for i, lane := range []string{"careful", "careful", "default", "careful"} {
		w.is.Equal(w.at(ids[i]).Lane, lane)
	}
	n, err = w.MoveStranded(w.ctx())
	w.is.NoErr(err)
	w.is.Equal(n, 0)
}
