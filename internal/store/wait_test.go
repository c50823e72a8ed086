package store_test

import (
	"slices"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestEndedJobsByLatestEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(plain, plain, plain, plain)
	list := w.claims(podID, 3)
	first, running, retried := list[0], list[1], list[2]
	waiting := ids[3]
	e := ending(first)
	e.Result = []byte(`{"n": 7}`)
	w.end(podID, e)
	w.end(podID, ending(retried))
	// During a retry, a reader can see both the end of the first epoch in done and the second epoch in live.
	w.exec(`insert into trapeze.live (id, state, lane, kind, subject, priority, epoch, event_no, ready_at)
		select id, 'pending', lane, 'k', '', priority, 2, event_no, now() from trapeze.done where id = $1`, retried.ID)
	nowhere := int64(1) << 60
	over, gone, err := view.Over(w.ctx(), w.Store, []int64{first.ID, running.ID, retried.ID, waiting, nowhere})
	w.is.NoErr(err)
	w.is.Equal(gone, []int64{nowhere})
	w.is.Equal(len(over), 1)
	w.is.Equal(over[0].ID, first.ID)
	w.is.Equal(string(over[0].Result), `{"n": 7}`)

	// The second epoch has also ended, and its result counts.
	w.exec(`delete from trapeze.live where id = $1`, retried.ID)
	w.exec(`with before as (delete from trapeze.done where id = $1 returning *)
		insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, started_at, xid, claim_xid)
		select id, 'failed', 'error', 'error', fence + 1, event_no, 2, attempt, crashes, priority, lane, started_at, xid, claim_xid from before`, retried.ID)
	over, _, err = view.Over(w.ctx(), w.Store, []int64{retried.ID})
	w.is.NoErr(err)
	w.is.Equal(len(over), 1)
	w.is.Equal(over[0].State, job.Failed)
	w.exec(`with later as (delete from trapeze.done where id = $1 returning *)
		insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, started_at, xid, claim_xid)
		select id, 'succeeded', 'ok', '', fence - 1, event_no, 1, attempt, crashes, priority, lane, started_at, xid, claim_xid from later`, retried.ID) // restores the row that matches the job's history

	// Wait for more jobs than one statement reads.
	var many []int64
	for range 201 /* two full statements and one more job */ {
		many = append(many, w.put(plain)...)
	}
	for _, c := range w.claims(podID, len(many)+1) {
		w.end(podID, ending(c))
	}
	over, gone, err = view.Over(w.ctx(), w.Store, many)
	w.is.NoErr(err)
	w.is.Equal(len(gone), 0)
	seen := map[int64]bool{}
	for _, j := range over {
		seen[j.ID] = true
	}
	w.is.True(!slices.ContainsFunc(many, func(id int64) bool { return !seen[id] })) // every job is reported
}
