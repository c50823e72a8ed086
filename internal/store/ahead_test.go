package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// ahead claims n jobs for free slots, and up to the given number of jobs of kind k ahead of time. It returns the ids of both groups.
func (w *world) ahead(podID string, n, ahead int) (slots, spare []int64) {
	w.t.Helper()
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: n, Ahead: ahead}}, []string{"k", "long"}, []string{"k"}, true)
	w.is.NoErr(err)
	for _, c := range found.Jobs {
		if c.Ahead {
			spare = append(spare, c.ID)
		} else {
			slots = append(slots, c.ID)
		}
	}
	slices.Sort(slots)
	slices.Sort(spare)
	return slots, spare
}

func TestClaimAheadJobSelection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	while := "active"
	for name, other := range map[string]func(*store.NewJob){
		"another kind": func(n *store.NewJob) { n.Kind = "long" }, "a subject": about("s"), "a unique key": func(n *store.NewJob) { n.UniqueWhile = &while },
	} {
		ids := w.put(plain, plain, other, plain)
		podID := w.pod(name)
		slots, spare := w.ahead(podID, 1, 3)
		w.is.Equal(slots, ids[:1])
		w.is.Equal(spare, ids[1:2]) // the third job must wait for a slot, and the fourth does not overtake it
		slots, spare = w.ahead(podID, 1, 3)
		w.is.Equal(slots, ids[2:3])
		w.is.Equal(spare, ids[3:])
		w.exec(`delete from trapeze.live`)
		w.exec(`delete from trapeze.subjects`)
		w.exec(`delete from trapeze.job_events`)
		w.exec(`delete from trapeze.jobs`)
	}
}

func TestStatusMarksFetchedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain, plain)
	podID := w.pod("a")
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 1, Ahead: 1}}, []string{"k"}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 2)
	fetched := func() map[int64]bool {
		status, err := view.ReadStatus(w.ctx(), w.Store)
		w.is.NoErr(err)
		marks := map[int64]bool{}
		for _, j := range status.Running {
			marks[j.Job] = j.Fetched
		}
		return marks
	}
	first, second := found.Jobs[0], found.Jobs[1]
	w.is.Equal(fetched(), map[int64]bool{first.ID: false, second.ID: true})
	_, err = store.NoteStarted(w.ctx(), w.Store, podID, []job.Lease{leaseOf(podID, second)}, []time.Time{time.Now()})
	w.is.NoErr(err)
	w.is.Equal(fetched(), map[int64]bool{first.ID: false, second.ID: false})
}

func TestClaimAheadSkipsLockedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.put(plain, func(n *store.NewJob) { n.Kind = "long" }, plain, plain)
	release := w.freeze(`select from trapeze.live where id = $1 for update`, ids[0])
	slots, spare := w.ahead(w.pod("a"), 1, 1)
	w.is.Equal(slots, ids[1:2])
	w.is.Equal(spare, ids[2:3])
	release(false)
}

// claimedAhead creates a job with the given crash limit and lets pod a claim it ahead of time. by is the pod id of another pod.
func claimedAhead(t *testing.T, limit int) (w *world, id int64, a, by string) {
	w = newWorld(t)
	id = w.put(func(n *store.NewJob) { n.MaxCrashes = &limit })[0]
	a, by = w.pod("a"), w.pod("by")
	_, spare := w.ahead(a, 0, 1)
	w.is.Equal(spare, []int64{id})
	return w, id, a, by
}

func TestCrashCountAfterClaimAhead(t *testing.T) {
	t.Parallel()
	w, id, a, by := claimedAhead(t, 2)
	w.is.Equal(w.at(id).StartedAt, nil) // a job claimed ahead of time has no start time
	w.is.Equal(first(w.dies(a, by)), 1)
	j := w.at(id)
	w.is.Equal(j.State, job.Pending)
	w.is.Equal(j.Crashes, 0)
	w.is.Equal(j.Attempt, 0)

	b := w.pod("b")
	slots, spare := w.ahead(b, 0, 1)
	w.is.Equal(len(slots)+len(spare), 0) // the recovered job is not claimed ahead of time again
	slots, _ = w.ahead(b, 1, 1)
	w.is.Equal(slots, []int64{id})
	w.is.True(w.at(id).StartedAt != nil)
	w.dies(b, by)
	w.is.Equal(w.at(id).Crashes, 1)
	c := w.pod("c")
	slots, _ = w.ahead(c, 1, 0)
	w.is.Equal(slots, []int64{id})
	w.dies(c, by)
	w.is.Equal(w.at(id).State, job.Failed) // the first crash did not count, so the job failed at its third crash
}

func TestClaimAheadCrashLimit1(t *testing.T) {
	t.Parallel()
	w, id, a, by := claimedAhead(t, 1)
	w.dies(a, by)
	w.is.Equal(w.at(id).State, job.Failed)
}

func TestClaimedAheadJobStartTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, by := w.pod("a"), w.pod("by")
	w.put(plain, plain, plain, plain)
	found, err := w.Claim(w.ctx(), a, []store.Want{{Lane: "default", Ahead: 4}}, []string{"k"}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 4)
	started := found.Jobs[0].ClaimedAt.Add(50 * time.Millisecond)
	alone, one, other, parked := found.Jobs[0], found.Jobs[1], found.Jobs[2], found.Jobs[3]
	e := ending(alone)
	e.Started = &started
	_, ok := w.end(a, e)
	w.is.True(ok)
	_, err = w.Park(w.ctx(), leaseOf(a, parked), time.Hour, store.Retry{Started: started})
	w.is.NoErr(err)
	// Once the handler's start has been recorded, a crash counts as usual.
	noted, err := store.NoteStarted(w.ctx(), w.Store, a, []job.Lease{leaseOf(a, one), {JobID: other.ID, Fence: other.Fence + 1}}, []time.Time{started, started})
	w.is.NoErr(err)
	w.is.Equal(noted, []int64{one.ID}) // a claim's start is recorded only if the fence matches
	for _, c := range []*store.Claimed{alone, one, parked} {
		w.is.True(w.at(c.ID).StartedAt.Equal(started))
	}
	w.is.Equal(first(w.dies(a, by)), 2)
	w.is.Equal(w.at(one.ID).Crashes, 1)
	w.is.Equal(w.at(other.ID).Crashes, 0)
}
