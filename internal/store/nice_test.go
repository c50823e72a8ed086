package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// A mark holds for its rank only. Claims and submissions that start at a mark still find a job whose priority has since changed.
func TestMarkAfterPriorityChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(urgent(10), urgent(-100), urgent(10))
	w.ready(ids[0], 2*time.Hour)
	w.ready(ids[1], 3*time.Hour)
	w.ready(ids[2], time.Hour)
	marks, _, err := w.Marks(w.ctx(), map[string][]store.Mark{"default": {{Rank: -10}, {Rank: 100}}}, []string{"k"}, 0)
	w.is.NoErr(err)
	// On a busy machine, other ranks get marks as well. They would hide the job with the new priority until they expire.
	from := slices.DeleteFunc(marks["default"], func(m store.Mark) bool { return m.Rank != -10 && m.Rank != 100 })
	w.is.Equal(len(from), 2)
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, ids[1], 100, false, "ann"))
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, ids[0], -100, false, "ann"))
	n := w.new(func(n *store.NewJob) { n.Priority, n.Starts = 99, true })
	e, err := w.EnqueueFrom(w.ctx(), podID, n, from)
	w.is.NoErr(err)
	w.is.Equal(e.Places[n[0].ID], store.PlacedPending) // the job with the new priority goes first
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 9, Marks: from}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{ids[1], n[0].ID, ids[2], ids[0]})
}

// Changing a priority re-inserts the row, so the statement must list all columns. Otherwise, a column added by a later migration would be
// lost.
func TestPriorityChangePreservesColumns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"))
	c := w.claimOne(podID)
	w.is.NoErr(second(w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, "stop"))) // the row has been claimed before
	w.exec(`update trapeze.live set writes = 7, attempt = 2, crashes = 1, isolated = true, unique_while = 'active', epoch = 3 where id = $1`, c.ID)
	row := func() map[string]any {
		result, err := w.pool.Query(w.ctx(), `select * from trapeze.live where id = $1`, c.ID)
		w.is.NoErr(err)
		list, err := pgx.CollectRows(result, pgx.RowToMap)
		w.is.NoErr(err)
		return list[0]
	}
	before := row()
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, c.ID, 42, false, "ann"))
	after := row()
	var changed []string
	for name, value := range before {
		at, ok := value.(time.Time)
		same := value == after[name]
		if ok {
			same = at.Equal(after[name].(time.Time))
		}
		if !same {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	w.is.Equal(changed, []string{"event_no", "priority"})
}

// If a chain's priority changes during a claim, the claim skips the job, because the claim would otherwise return the old plan.
func TestClaimDuringPriorityChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ShortWait(time.Minute) // otherwise, on a busy machine, the priority change could time out before the claim and be retried after it
	podID := w.pod("a")
	id := w.put(func(n *store.NewJob) {
		n.Planned = []byte(`[{"kind":"k","args":{"a": "<b>"},"priority":1},{"kind":"k","args":null}]`)
	})[0]
	release := w.freeze(`select from trapeze.jobs where id = $1 for update`, id) // the priority change has locked the row in live, but has not changed the plan yet
	niced := async(func() (int, error) { return 0, admin.SetPriority(w.ctx(), w.Store, id, 30, true, "ann") })
	w.waiting(1)
	w.is.Equal(len(w.claims(podID, 1)), 0)
	release(true)
	_, err := niced()
	w.is.NoErr(err)
	c := w.claimOne(podID)
	w.is.Equal(c.Priority, 30)
	w.is.Equal(string(c.Planned), `[{"args":{"a":"<b>"},"kind":"k","priority":30},{"args":null,"kind":"k","priority":30}]`)
	w.is.True(errors.Is(admin.SetPriority(w.ctx(), w.Store, id, 1, true, "ann"), job.ErrNotQueued))
	w.end(podID, ending(c))
}

// A delete locks a job's row in jobs before its row in done. A retry must lock them in the same order, so that the two cannot deadlock.
func TestRetryWaitingForDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.failing(w.pod("a"))
	release := w.freeze(`select from trapeze.jobs where id = $1 for update`, id)
	retried := async(func() ([]int64, error) { return admin.Retry(w.ctx(), w.Store, id, nil, "bob") })
	w.waiting(1)
	w.exec(`select from trapeze.done where id = $1 for update nowait`, id)
	release(false)
	_, err := retried()
	w.is.NoErr(err)
}

// If a delete and a retry run concurrently, one of them is rejected, and no partial changes are left behind.
func TestConcurrentDeleteAndRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	for range 8 {
		id := w.failing(podID)
		release := w.freeze(`select from trapeze.jobs where id = $1 for update`, id)
		deleted := async(func() (int, error) { return admin.Delete(w.ctx(), w.Store, id, "ann") })
		retried := async(func() ([]int64, error) { return admin.Retry(w.ctx(), w.Store, id, nil, "bob") })
		w.waiting(2)
		release(true)
		n, gone := deleted()
		again, back := retried()
		w.is.True((gone == nil) != (back == nil)) // exactly one of them succeeds
		if gone == nil {
			w.is.Equal(n, 1)
			w.is.True(errors.Is(back, job.ErrNotFound) || errors.Is(back, job.ErrNotFailed))
			w.is.Equal(w.count(`select (select count(*) from trapeze.jobs) + (select count(*) from trapeze.done) + (select count(*) from trapeze.live)`), 0)
			continue
		}
		w.is.Equal(again, []int64{id})
		w.is.True(errors.Is(gone, job.ErrNotTerminal))
		w.promote(1)
		w.end(podID, ending(w.claimOne(podID)))
		_, err := admin.Delete(w.ctx(), w.Store, id, "ann")
		w.is.NoErr(err)
	}
}

func TestPodRequestOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	for _, id := range []int{2, 1, 3} { // the order of the rows in the table
		w.exec(`insert into trapeze.claim_requests (id, pod, job_id, fence, what, priority) overriding system value values ($2::bigint, $1, 1, 1, 'priority', $2::bigint)`, podID, id)
	}
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	var order []int
	for _, one := range beat.Requests {
		order = append(order, *one.Priority)
	}
	w.is.Equal(order, []int{1, 2, 3}) // the last of several priorities applies
}
