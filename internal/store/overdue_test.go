package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

const aDay = 24 * time.Hour

// overdue ends jobs that are older than their lane's limit, or older than a day if the lane has none. It returns the jobs that ended and
// those that were skipped.
func (w *world) overdue(limit int) (ended, passed []int64) {
	w.t.Helper()
	list, err := upkeep.EndOverdue(w.ctx(), w.Store, aDay, limit)
	w.is.NoErr(err)
	for _, o := range list {
		if o.Ended != nil {
			ended = append(ended, o.ID)
		} else {
			passed = append(passed, o.ID)
		}
	}
	return ended, passed
}

// due backdates the ready times of jobs in live by the given number of hours.
func (w *world) due(hours int, ids ...int64) {
	w.t.Helper()
	w.exec(`update trapeze.live set ready_at = now() - $1::int * interval '1 hour' where id = any($2)`, hours, ids)
}

func TestOverdueJobInEveryState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	running := w.put(about("s"))[0]
	c := w.claimOne(podID)
	ids := w.put(plain, plain, func(n *store.NewJob) { n.Priority = -100 }, func(n *store.NewJob) { n.DelayMillis = 1 })
	young, old, low, parked := ids[0], ids[1], ids[2], ids[3]
	w.due(25, running, old, low)
	w.due(23, young)
	w.exec(`update trapeze.parked set run_after = now() - interval '25 hours'`)
	ended, _ := w.overdue(10)
	w.is.Equal(ended, []int64{running, old, low}) // the jobs end in order of rank
	for _, id := range ended {
		j := w.at(id)
		w.is.Equal([]any{j.State, *j.Reason, *j.Error}, []any{job.Failed, job.ReasonDeadline, "not ended within 24:00:00 of becoming due"})
	}
	w.is.Equal(w.at(young).State, job.Pending)
	w.is.Equal(w.at(parked).State, job.Pending) // a job does not age while it is waiting to become due
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(beat.Cancels, []store.CancelRequest{{running, 1, job.ReasonDeadline}}) // the job's pod is notified
	_, ok := w.end(podID, ending(c))
	w.is.True(!ok) // the late result is rejected
	next := w.put(about("s"))[0]
	w.is.Equal(idsOf(w.claims(podID, 5)), []int64{young, next}) // the subjects of the jobs that ended are free
	ended, passed := w.overdue(10)
	w.is.Equal(len(ended)+len(passed), 0)
}

func TestLaneMaxAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name, max_age_s) values ('quick', 3600), ('patient', 0), ('slow', 360000)`)
	in := func(lane string) func(*store.NewJob) { return func(n *store.NewJob) { n.Lane = lane } }
	ids := w.put(in("quick"), in("patient"), in("slow"), plain)
	w.due(2, ids...)
	ended, _ := w.overdue(10)
	w.is.Equal(ended, ids[:1]) // this lane's limit is one hour
	w.due(50, ids...)
	ended, _ = w.overdue(10)
	w.is.Equal(ended, ids[3:]) // only the job with the default limit of one day ends
	w.due(101, ids...)
	list, err := upkeep.EndOverdue(w.ctx(), w.Store, -1, 10)
	w.is.NoErr(err)
	w.is.Equal(len(list), 1) // without a default, only the lane's own limit applies
	w.is.Equal(w.at(ids[2]).State, job.Failed)
	w.is.Equal(w.at(ids[1]).State, job.Pending)
}

func TestRecoveredJobAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(plain)[0]
	w.claimOne(a)
	w.dies(a, b)
	ended, passed := w.overdue(10)
	w.is.Equal(len(ended)+len(passed), 0) // the job does not end, even though its ready time is the earliest of all
	w.exec(`update trapeze.live set claimed_at = now() - interval '25 hours'`)
	ended, _ = w.overdue(10)
	w.is.Equal(ended, []int64{id})
}

func TestOverdueJobWithLockedRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(plain)[0]
	c := w.claimOne(podID)
	w.due(25, id)
	tx, err := store.Hold(w.ctx(), w.Store, w.pool, leaseOf(podID, c), time.Minute, false)
	w.is.NoErr(err)
	defer tx.End(w.ctx())
	_, passed := w.overdue(10)
	w.is.Equal(passed, []int64{id}) // the statement does not wait for the handler's transaction
	w.is.Equal(w.at(id).State, job.Running)
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(beat.Cancels, []store.CancelRequest{{id, 1, job.ReasonDeadline}}) // the pod is notified
	w.is.NoErr(tx.Commit(w.ctx()))
	ended, _ := w.overdue(10)
	w.is.Equal(ended, []int64{id})
}

func TestOverdueJobWithCancelRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(plain)[0]
	w.claimOne(podID)
	_, err := admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	w.due(25, id)
	w.overdue(10)
	j := w.at(id)
	w.is.Equal([]any{j.State, *j.Reason, j.Error == nil}, []any{job.Cancelled, job.ReasonCancelled, true})
}

func TestOverdueJobPagesAndKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.new(plain)[0].ID
	w.is.NoErr(pgx.BeginFunc(w.ctx(), w.pool, func(tx pgx.Tx) error {
		_, err := store.ReserveKey(w.ctx(), w.Store, tx, "k", "key", id)
		return err
	}))
	_, err := w.Enqueue(w.ctx(), w.pod("a"), []store.NewJob{{ID: id, Kind: "k", Lane: "default", Args: []byte(`{}`), UniqueKey: ptr("key"), UniqueWhile: ptr("active")}})
	w.is.NoErr(err)
	ids := append(w.put(plain, plain, plain, plain), id)
	w.due(25, ids...)
	for _, want := range []int{2, 2, 1, 0} {
		ended, _ := w.overdue(2)
		w.is.Equal(len(ended), want)
	}
	w.is.Equal(w.count(`select count(*) from trapeze.unique_keys`), 0)
}
