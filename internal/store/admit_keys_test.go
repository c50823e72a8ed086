package store_test

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// ahead returns a change that sets a subject, a key and a high priority.
func ahead(subject, key string) func(*store.NewJob) {
	return func(n *store.NewJob) { n.Subject, n.Key, n.Priority = subject, key, 20 }
}

// A pending job yields to a more urgent one that waited for a place.
func TestYieldToKeyedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"))
	id := w.put(ahead("s", "a"))[0]
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(w.claimOne(podID).ID, id)
}

// A job that yields gives its place to the next job of its key.
func TestPlaceOfYieldedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 1)`)
	w.put(func(n *store.NewJob) { n.Subject, n.Key = "s", "a" })
	w.is.Equal(w.admitKeys("a"), 1)
	w.put(keyed("a"), ahead("s", ""))
	jobs, err := w.AdmitNext(w.ctx(), store.Line{Kind: "k", Subject: "s"})
	w.is.NoErr(err)
	w.is.Equal(len(jobs), 2)
	w.missed(0)
}

// A line that is named twice counts once.
func TestRepeatedLines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 3)`)
	w.put(keyed("a"), keyed("a"), keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a", "a", "a"), 3)
	w.is.Equal(w.places("a"), []string{"1/0", "2/0", "3/0"})
}

// A new limit of a kind counts the jobs that became pending before.
func TestLimitAfterUnlimitedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(keyed("a"), keyed("a"), keyed("a"), keyed("a"))
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('kind', 'other', '*', 1)`)
	w.is.Equal(w.admitKeys("a"), 4)
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('kind', 'k', '*', 2)`)
	w.put(keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a"), 0)
	for _, admitted := range []int{0, 0, 1, 1} {
		w.is.NoErr(second(w.Finish(w.ctx(), podID, []store.Ending{ending(w.claimOne(podID))})))
		w.is.Equal(w.admitKeys("a"), admitted)
	}
}

// Jobs of two kinds share the limit of their lane, even if it has been lowered and the jobs in live have high places.
func TestLoweredLimitSharedByKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(keyed("a"), keyed("a"), keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a"), 4)
	for range 2 {
		w.is.NoErr(second(w.Finish(w.ctx(), podID, []store.Ending{ending(w.claimOne(podID))})))
	}
	w.is.Equal(w.places("a"), []string{"3/0", "4/0"})
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 3)`)
	w.put(keyed("a"), func(n *store.NewJob) { n.Key, n.Kind = "a", "other" })
	w.is.Equal(w.admitKeys("a"), 1)
}

// A due job that waits for a place after its promotion no longer precedes the other jobs of its subject.
func TestSubjectOfPromotedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 1)`)
	w.put(func(n *store.NewJob) { n.Key, n.Priority = "a", 30 })
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.NoErr(second(store.EnqueueIn(w.ctx(), w.Store, w.pool, w.new(ahead("s", "a")), false))) // due, and promoted after the commit
	w.put(about("s"))
	w.missed(0)
	_, waiting, err := w.Promote(w.ctx(), 10)
	w.is.NoErr(err)
	jobs, err := w.AdmitNext(w.ctx(), waiting...)
	w.is.NoErr(err)
	w.is.Equal(len(jobs), 1)
	w.missed(0)
}

// A next step does not keep a place beyond a limit that has been lowered.
func TestNextStepAfterLoweredLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a"), 2)
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', 'a', 1)`)
	for i, c := range w.claims(podID, 2) { // the first one has the place 1
		next := w.new(then(c, keyed("a")))[0]
		ended, err := w.Finish(w.ctx(), podID, []store.Ending{{ID: c.ID, Fence: c.Fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Next: &next, InLine: true}})
		w.is.NoErr(err)
		w.is.Equal(ended[c.ID].ChildRunning, i == 0)
		w.is.Equal(w.admitKeys("a"), 0)
	}
	w.is.Equal(w.places("a"), []string{"1/0"})
}

// A job in a closed lane takes no place from the jobs of its key and kind in other lanes.
func TestPlacesInClosedLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.exec(`insert into trapeze.lanes (name, drained) values ('a closed one', true)`)
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('k', 1)`)
	w.put(func(n *store.NewJob) { n.Key, n.Lane, n.Priority = "a", "a closed one", 20 }, keyed("a"))
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.live where lane = 'default'`), 1)
}
