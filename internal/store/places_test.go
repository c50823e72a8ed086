package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func keyed(key string) func(*store.NewJob) { return func(n *store.NewJob) { n.Key = key } }

// admitKeys admits the jobs of keys and returns how many.
func (w *world) admitKeys(keys ...string) int {
	w.t.Helper()
	var lines []store.Line
	for _, key := range keys {
		lines = append(lines, store.Line{Key: key})
	}
	jobs, err := w.AdmitNext(w.ctx(), lines...)
	w.is.NoErr(err)
	return len(jobs)
}

// places returns the places of the jobs of a key in live, in the order of their ids, as "lane place/kind place".
func (w *world) places(key string) (list []string) {
	w.t.Helper()
	w.is.NoErr(w.pool.QueryRow(w.ctx(), w.In(`select coalesce(array_agg(lane_place || '/' || coalesce(kind_place, 0) order by id), '{}') from trapeze.live where key = $1`), key).Scan(&list))
	return list
}

func TestLimitPerKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 2)`)
	w.put(keyed("a"), keyed("a"), keyed("a"), keyed("b"))
	w.is.Equal(len(w.claims(podID, 10)), 0) // a job with a key is not pending before it has a place
	w.is.Equal(w.admitKeys("a", "b"), 3)
	w.is.Equal(w.admitKeys("a", "b"), 0)
	w.is.Equal(w.places("a"), []string{"1/0", "2/0"})
	claimed := w.claims(podID, 10)
	w.is.Equal(len(claimed), 3)
	i := slices.IndexFunc(claimed, func(c *store.Claimed) bool { return c.Key == "a" })
	w.is.NoErr(second(w.Finish(w.ctx(), podID, []store.Ending{ending(claimed[i])})))
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(w.places("a"), []string{"2/0", "1/0"})
}

func TestLimitPerKeyAndKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('k', 1)`)
	other := func(n *store.NewJob) { n.Key, n.Kind = "a", "j" }
	w.put(keyed("a"), func(n *store.NewJob) { n.Key, n.Lane = "a", "other" }, other, other, keyed("b"))
	w.is.Equal(w.admitKeys("a", "b"), 4) // both jobs of the other kind, and one of the limited kind for each key
	w.is.Equal(w.places("a"), []string{"1/1", "2/0", "3/0"})
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('kind', 'k', 'a', 2)`)
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(w.places("a"), []string{"1/1", "1/2", "2/0", "3/0"})
}

// Jobs that became live before their kind had a limit count against it.
func TestLimitOfKindSetLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.put(keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a"), 2)
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('k', 3)`)
	w.put(keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a"), 1)
}

// The jobs of a key beyond its window wait, and those of other keys come before them.
func TestFairWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a") // 8 slots: the window is 32
	var many []func(*store.NewJob)
	for range 100 {
		many = append(many, keyed("big"))
	}
	w.put(many...)
	w.is.Equal(w.admitKeys("big"), 32)
	for i := range 5 {
		w.put(keyed(fmt.Sprint("small", i)))
		w.is.Equal(w.admitKeys(fmt.Sprint("small", i)), 1)
	}
	var order []string
	for range 50 {
		claimed := w.claimOne(podID)
		order = append(order, claimed.Key)
		w.end(podID, ending(claimed))
		w.admitKeys(claimed.Key)
	}
	for i := range 5 {
		w.is.True(slices.Index(order, fmt.Sprint("small", i)) < 40)
	}
	w.is.Equal(len(w.places("big")), 32)
	w.exec(`insert into trapeze.limits (scope, name, key, weight) values ('lane', 'default', 'big', 2)`)
	w.is.Equal(w.admitKeys("big"), 23) // 45 have ended, 32 are live, 23 are left
}

// A next step with the same key keeps the places of its parent.
func TestNextStepKeepsPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 1)`)
	w.put(keyed("a"), keyed("a"))
	w.is.Equal(w.admitKeys("a"), 1)
	first := w.claimOne(podID)
	ended, ok := w.end(podID, endingWith(first, w.new(then(first, keyed("a")))[0]))
	w.is.True(ok && ended.ChildRunning)
	w.is.Equal(w.places("a"), []string{"1/0"})
	w.is.Equal(w.admitKeys("a"), 0)
	_, second := first, store.Claimed{}
	w.is.NoErr(w.pool.QueryRow(w.ctx(), w.In(`select id, fence from trapeze.live where key = 'a'`)).Scan(&second.ID, &second.Fence))
	// A step with another key waits for a place of its own, and the first key's place is free.
	next := w.new(then(first, keyed("b")))[0]
	ended, ok = w.end(podID, store.Ending{ID: second.ID, Fence: second.Fence, State: "succeeded", Outcome: "ok", Reason: "ok", Next: &next, InLine: true})
	w.is.True(ok && !ended.ChildRunning)
	w.is.Equal(len(w.places("a"))+len(w.places("b")), 2) // admitted as missed jobs
}

// The reason why a job of a key waits names the limit or window that binds, and the jobs that hold the places.
func TestKeyBlockers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a") // 8 slots: the window is 32
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('j', 1)`)
	says := func(id int64) string {
		t.Helper()
		list, err := view.Blockers(w.ctx(), w.Store, id, nil)
		w.is.NoErr(err)
		w.is.Equal(len(list), 1)
		w.is.Equal(list[0].Why, job.BlockerKey)
		return list[0].Says
	}
	var many []func(*store.NewJob)
	for range 34 {
		many = append(many, keyed("big"))
	}
	ids := w.put(many...)
	w.is.Equal(says(ids[33]), `the key "big" has a free place in the lane "default": the next poll admits the job`)
	w.is.Equal(w.admitKeys("big"), 32)
	w.is.Equal(says(ids[33]), `32 jobs of the key "big" are pending or running in the lane "default": the window, which leaves room for other keys, is 32`)
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 2)`)
	w.is.Equal(says(ids[33]), `32 jobs of the key "big" are pending or running in the lane "default": the limit is 2`)
	of := func(n *store.NewJob) { n.Key, n.Kind = "a", "j" }
	limited := w.put(of, of)
	w.is.Equal(w.admitKeys("a"), 1)
	w.exec(`update trapeze.pods set kinds = array['k', 'j']`)
	w.is.Equal(says(limited[1]), `1 job of the key "a" and the kind "j" is pending or running: the limit is 1`)
	due, _, err := view.BoardWaiting(w.ctx(), w.Store, 100, 100, 100)
	w.is.NoErr(err)
	waits := map[string]int{}
	for _, g := range due {
		if g.Why == "key" {
			waits[g.Kind+" "+g.Key] = g.Jobs
		}
	}
	w.is.Equal(waits, map[string]int{"k big": 2, "j a": 1})
}

// A job with a subject and a key needs both the guard and a place.
func TestSubjectAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 1)`)
	both := func(n *store.NewJob) { n.Subject, n.Key = "s", "a" }
	w.put(about("s"), both, both, keyed("a"))
	lines := []store.Line{{Kind: "k", Subject: "s"}, {Key: "a"}}
	var ran []string
	for len(ran) < 4 {
		_, err := w.AdmitNext(w.ctx(), lines...)
		w.is.NoErr(err)
		w.is.Equal(w.count(`select count(*) from trapeze.subjects c where state = 'held' and not exists (select from trapeze.live l where l.id = c.job_id)`), 0)
		claimed := w.claims(podID, 10)
		w.is.True(len(claimed) > 0)
		for _, c := range claimed {
			ran = append(ran, c.Subject+c.Key)
			w.end(podID, ending(c))
		}
	}
	slices.Sort(ran)
	w.is.Equal(ran, []string{"a", "s", "sa", "sa"})
}

// A job that is more urgent, or whose lane is open, gets the place of a pending job of its key.
func TestUrgentJobOfKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('k', 1)`)
	urgent := func(n *store.NewJob) { n.Key, n.Priority = "a", 20 }
	first := w.put(func(n *store.NewJob) { n.Key, n.Subject = "a", "s" })
	w.is.Equal(w.admitKeys("a"), 1)
	second := w.put(urgent)
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.subjects`), 0)
	w.is.Equal(w.claimOne(podID).ID, second[0])
	w.put(urgent)
	w.is.Equal(w.admitKeys("a"), 0) // a running job keeps its place
	w.exec(`delete from trapeze.live where state = 'running'`)
	w.exec(`delete from trapeze.parked where priority = 20`)
	w.is.Equal(w.admitKeys("a"), 1)
	w.exec(`update trapeze.lanes set drained = true where name = 'default'`)
	w.put(func(n *store.NewJob) { n.Key, n.Lane = "a", "other" })
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.live where lane = 'other'`), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.parked where id = $1 and why = 'key'`, first[0]), 1)
	w.exec(`truncate trapeze.live, trapeze.parked, trapeze.jobs, trapeze.job_events, trapeze.subjects`) // jobs were deleted by hand
}

// Many urgent jobs get the places of less urgent ones at once. A job as urgent as the last of them keeps its place.
func TestUrgentJobsOfKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.limits (scope, name, key, weight) values ('lane', 'default', '*', 4)`) // a window of 80 jobs
	const many = 60
	for priority, n := range map[int]int{5: many + 10, 10: 10} {
		for range n {
			w.put(func(n *store.NewJob) { n.Key, n.Priority = "a", priority })
		}
	}
	w.admitKeys("a")
	for range many {
		w.put(func(n *store.NewJob) { n.Key, n.Priority = "a", 20 })
	}
	for range 2 {
		w.put(func(n *store.NewJob) { n.Key, n.Priority = "a", 10 })
	}
	w.is.Equal(w.admitKeys("a"), many+2)
	w.is.Equal(w.count(`select count(*) from trapeze.live where priority = 20`), many)
	w.is.Equal(w.count(`select count(*) from trapeze.live where priority = 10`), 12)
	w.is.Equal(w.count(`select count(*) from trapeze.parked`), 62)
	w.exec(`truncate trapeze.live, trapeze.parked, trapeze.jobs, trapeze.job_events`)
}

// The pending jobs of a kind that no pod handles do not keep the other jobs of their key from places.
func TestPlacesOfUnhandledKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 2)`)
	foreign := func(n *store.NewJob) { n.Key, n.Kind = "a", "foreign" }
	w.put(foreign, foreign, foreign)
	w.is.Equal(w.admitKeys("a"), 2)
	w.put(keyed("a"))
	w.is.Equal(w.admitKeys("a"), 1)
	w.is.Equal(len(w.claims(podID, 10)), 1)
	w.is.Equal(w.admitKeys("a"), 0)
	w.is.Equal(len(w.places("a")), 2)
}
