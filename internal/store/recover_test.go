package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func TestRecoveredJobWithSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(about("s"))[0]
	old := w.claimOne(a)
	w.is.Equal(first(w.dies(a, b)), 1)
	w.is.Equal(w.at(id).State, job.Pending)
	again := w.claimOne(b)
	w.is.Equal(again.ID, id) // the row of the job's previous run in subjects does not block the new claim
	w.is.Equal(again.Fence, old.Fence+1)
	_, ok := w.end(a, ending(old))
	w.is.True(!ok) // the former owner is rejected
	_, ok = w.end(b, ending(again))
	w.is.True(ok)
}

func TestRecoveredJobAheadOfBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(plain)[0]
	w.claimOne(a)
	w.put(plain, plain)
	w.exec(`update trapeze.live set ready_at = now() - interval '1 day' where id <> $1`, id)
	w.dies(a, b)
	w.is.Equal(w.claimOne(b).ID, id)
}

func TestRecoveryBehind3000Jobs(t *testing.T) {
	t.Parallel()
	testRecoveryBehindBacklog(t, 3000)
}

func testRecoveryBehindBacklog(t *testing.T, backlog int) {
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.exec(`select setval('trapeze.job_ids', $1)`, backlog+1) // the job's id comes after those of the backlog
	w.put(plain)
	parent := w.claimOne(a)
	w.seedPending(backlog)
	child := w.new(then(parent))[0]
	end, ok := w.end(a, endingWith(parent, child))
	w.is.True(ok && end.ChildRunning) // no more urgent job is waiting, so the next step starts on insert
	began := time.Now()
	w.lapse(a)
	pending, _ := w.recover(b, 5000)
	took := time.Since(began)
	w.is.Equal(pending, 1)
	w.is.Equal(w.claimOne(b).ID, child.ID) // the next step goes before the backlog
	w.is.True(took < 5*time.Second)        // recovery takes one pass over live, regardless of how many jobs are waiting
	w.t.Logf("recovered behind %d jobs in %s", backlog, took)
}

// seedPending inserts n jobs into live without a history, in one statement.
func (w *world) seedPending(n int) {
	w.t.Helper()
	w.exec(`with made as (
			insert into trapeze.jobs (id, kind, lane, args, pipeline_id)
			select g, 'k', 'default', '{}', g from generate_series(1, $1::int) g returning id
		)
		insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
		select id, now(), 1, 10, 'pending', 'default', 'k', '' from made`, n)
}

func TestRecoveryWithoutLaneOrHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	ids := w.put(func(n *store.NewJob) { n.Kind = "nobody_knows" })
	found, err := w.Claim(w.ctx(), a, []store.Want{{Lane: "default", N: 1}}, []string{"nobody_knows"}, nil, false)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), ids)
	w.exec(`update trapeze.lanes set drained = true, enabled = false`)
	w.is.Equal(first(w.dies(a, b)), 1)
	w.is.Equal(w.at(ids[0]).State, job.Pending)
}

func TestCrashLimitAndIsolation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limit := func(crashes int) func(*store.NewJob) { return func(n *store.NewJob) { n.MaxCrashes = &crashes } }
	by := w.pod("by")
	for _, tt := range []struct {
		limit    int
		isolated []bool // the expected value after each crash that the job survives
	}{{1, nil}, {2, []bool{true}}, {3, []bool{false, true}}, {5, []bool{false, true, true, true}}} {
		id := w.put(limit(tt.limit))[0]
		for _, isolated := range tt.isolated {
			podID := w.pod("a")
			w.claimOne(podID)
			w.dies(podID, by)
			var is bool
			w.is.NoErr(w.pool.QueryRow(w.ctx(), `select isolated from trapeze.live where id = $1`, id).Scan(&is))
			w.is.Equal(is, isolated) // a job is isolated after two crashes, or if its next crash would be the last
		}
		podID := w.pod("a")
		w.claimOne(podID)
		_, ended := w.dies(podID, by)
		w.is.Equal(ended, 1)
		j := w.at(id)
		w.is.Equal(j.State, job.Failed)
		w.is.Equal(*j.Reason, job.ReasonCrashed)
		w.is.Equal(j.Crashes, tt.limit)
	}
}

func TestClaimOfIsolatedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(plain, plain, plain)
	w.exec(`update trapeze.live set crashes = 2, isolated = true where id = any($1)`, ids[:2])
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 3}}, []string{"k"}, nil, false)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), ids[2:]) // a pod that runs an isolated job claims no other isolated job
	found, err = w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 3}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 1) // a claim takes only one isolated job
	w.is.True(found.Jobs[0].Isolated)
}

func TestACheckpointForgivesCrashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(plain)[0]
	w.claimOne(a)
	w.dies(a, b)
	c := w.claimOne(b)
	tx, err := store.Hold(w.ctx(), w.Store, w.pool, leaseOf(b, c), time.Minute, false)
	w.is.NoErr(err)
	w.is.NoErr(tx.Checkpoint(w.ctx(), w.Store, c.ID, json.RawMessage(`{"line":7}`)))
	tx.End(w.ctx())
	w.is.Equal(w.at(id).Crashes, 0)
	w.dies(b, w.pod("c"))
	again := w.claimOne(w.pod("d"))
	w.is.Equal(string(again.Checkpoint), `{"line":7}`) // the next claim returns the checkpoint
	w.is.Equal(again.Fence, c.Fence+1)
}

func TestRecoveryWithCancelRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(about("s"))[0]
	w.claimOne(a)
	c, err := admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	w.is.Equal(c.State, job.Running)
	_, ended := w.dies(a, b)
	w.is.Equal(ended, 1)
	w.is.Equal(w.at(id).State, job.Cancelled)
	w.is.Equal(*w.at(id).Reason, job.ReasonCancelled)
}

func TestPodClosedWithoutOtherPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	id := w.put(plain)[0]
	w.claimOne(a)
	// The pod was closed, either because it left or because another pod closed it and died before recovering any jobs. Then no pod ran for
	// a day.
	w.exec(`update trapeze.pods set closed_at = now() - interval '1 day', closed = 'left' where id = $1`, a)
	pending, _ := w.recover(w.pod("b"), 1000)
	w.is.Equal(pending, 1)
	w.is.Equal(w.at(id).State, job.Pending)
	podIDs, err := store.SweepsDue(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(podIDs), 0) // after a day, one sweep is enough
}

func TestConcurrentRecoveryByTwoPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain, plain, about("s"), about("t"))
	w.is.Equal(len(w.claims(a, 4)), 4)
	w.lapse(a)
	_, err := store.CloseLapsed(w.ctx(), w.Store, b, lease, time.Time{})
	w.is.NoErr(err)
	page := func() (store.RecoveredPage, error) {
		return store.RecoverPage(w.ctx(), w.Store, []string{a}, -1, 100, 3)
	}
	x, y := async(page), async(page)
	px, err := x()
	w.is.NoErr(err)
	py, err := y()
	w.is.NoErr(err)
	w.is.Equal(px.Pending+py.Pending, 4) // each job is recovered exactly once, by one of the two pods
	w.is.Equal(w.count(`select count(*) from trapeze.live where crashes = 1`), 4)
}

func TestSweepAfterPodLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	w.claimOne(a)
	w.is.NoErr(w.Leave(w.ctx(), a))
	pending, _ := w.recover(b, 1000)
	w.is.Equal(pending, 1)
	w.is.NoErr(w.Leave(w.ctx(), uuid.NewString())) // a pod without a row can leave without an error
}
