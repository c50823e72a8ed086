package store_test

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// The test runs random histories of all operations against both the real store and a model made of plain maps. After each operation, the
// tables and the results must match the model. At the end, every enqueued job must be able to finish.
//
// A failure prints its seed and a minimized history. -rapid.seed=N repeats it, and -rapid.checks=N runs N histories.
func TestRandomStoreHistories(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.WithParameter(pgtest.URL(t), "plan_cache_mode=force_generic_plan"))
	st, err := store.New(context.Background(), pool, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	limitHistories(t)
	began, failed := time.Now(), false
	taken, happened, total := map[string]int{}, map[string]int{}, 0
	rapid.Check(t, func(t *rapid.T) {
		if !failed && time.Since(began) > patience {
			return // a slow machine runs fewer histories
		}
		ended := false
		defer func() { failed = failed || !ended }() // rapid reruns a failed history to minimize it
		b := newBench(t, st, pool)
		for _, v := range []operation{b.join(), b.join(), enqueues(bootOf(1), b.drawJobs(t, 3, starts)), enqueues(bootOf(0), b.drawJobs(t, 3, plain))} {
			b.try(v)
		}
		t.Repeat(map[string]func(*rapid.T){"step": func(t *rapid.T) {
			b.t = t
			taken[b.take(t)]++
			total++
		}})
		b.t = t
		b.settle()
		for _, e := range b.m.events {
			happened[e.event]++
		}
		happened["lease lost"] += b.lost
		ended = true
	})
	t.Logf("%d steps: %v", total, taken)
	t.Logf("events: %v", happened)
	if total < 2000 {
		return // too few steps to cover everything
	}
	for _, s := range steps {
		if taken[s.name] == 0 {
			t.Errorf("no history had the step %q, so it was not tested", s.name)
		}
	}
	for _, what := range []string{"job.enqueued", "job.claimed", "job.promoted", "job.retried", "job.snoozed", "job.handed_back",
		"job.recovered", "job.succeeded", "job.failed", "job.cancelled", "job.cancel_requested", "job.stale_result", "job.niced", "job.operator_retry", "my.event",
		"pod.joined", "pod.lapsed", "pod.left", "lease lost"} {
		if happened[what] == 0 {
			t.Errorf("%q never happened, so it was not tested", what)
		}
	}
}

// limitHistories sets the number of histories, unless the command line or the environment has already set it.
func limitHistories(t *testing.T) {
	set := os.Getenv("RAPID_CHECKS") != ""
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
	if set {
		return
	}
	if err := flag.Set("rapid.checks", strconv.Itoa(histories)); err != nil {
		t.Fatal(err)
	}
}

// bench runs operations on both the store and its model.
type bench struct {
	t      rapid.TB
	st     *store.Store
	pool   *pgxpool.Pool
	m      *model
	jobs   int64                   // the last id assigned to a job
	podIDs int                     // the last number assigned to a pod
	beats  map[string][]store.Lane // the lanes in the last heartbeat of each pod
	given  []job.Lease             // all leases that were ever issued
	lost   int                     // number of results that reported a lost lease
}

// newBench empties the tables and returns a new bench.
func newBench(t rapid.TB, st *store.Store, pool *pgxpool.Pool) *bench {
	t.Helper()
	_, err := pool.Exec(context.Background(), `
		delete from trapeze.jobs; delete from trapeze.live; delete from trapeze.parked; delete from trapeze.done;
		delete from trapeze.subjects; delete from trapeze.unique_keys; delete from trapeze.submissions;
		delete from trapeze.job_progress; delete from trapeze.cancel_requests; delete from trapeze.pods;
		delete from trapeze.job_events; delete from trapeze.lanes; update trapeze.admission set kind = '', subject = ''; update trapeze.queue_state set paused = false;
		insert into trapeze.lanes (name) values ('default'), ('side')`)
	if err != nil {
		t.Fatalf("empty the tables: %v", err)
	}
	return &bench{t: t, st: st, pool: pool, m: newModel(), beats: map[string][]store.Lane{}}
}

// try runs an operation on the store and on the model, and compares the results and all tables.
func (b *bench) try(v operation) {
	b.t.Helper()
	got := v.ask(context.Background(), b.st)
	want := v.apply(b.m)
	if strings.Contains(want, job.ErrLeaseLost.Error()) {
		b.lost++
	}
	if got != want {
		b.t.Fatalf("%s:\n  the store returns %s\n  the model returns %s", v.name, got, want)
	}
	b.same(v.name)
}

func (b *bench) same(after string) {
	b.t.Helper()
	found, err := table(context.Background(), b.pool)
	if err != nil {
		b.t.Fatalf("read the tables after %s: %v", after, err)
	}
	if d := differs(found, b.m.table()); d != "" {
		b.t.Fatalf("%s: the tables differ:%s", after, d)
	}
	b.remember()
}

// remember stores the current leases of all jobs, so that later steps can try leases that have been lost in the meantime.
func (b *bench) remember() {
	for _, j := range b.m.pick((*modelJob).runs) {
		if !slices.Contains(b.given, j.lease()) {
			b.given = append(b.given, j.lease())
		}
	}
}

// join returns an operation that registers a new pod.
func (b *bench) join() operation {
	b.podIDs++
	return registers(bootOf(b.podIDs), "pod-"+number(b.podIDs))
}

// job returns a new job of kind k in the default lane.
func (b *bench) job() store.NewJob {
	b.jobs++
	return store.NewJob{ID: b.jobs, Kind: "k", Lane: "default", Args: json.RawMessage(`{"n": 1}`), Priority: 10, Submitter: "ann", Actor: "ann"}
}

// sweep returns the operations with which a pod recovers jobs page by page.
func (b *bench) sweep(by string, page, maxCrashes int) []operation {
	var podIDs, unswept []string
	for _, podID := range slices.Sorted(maps.Keys(b.m.pods)) {
		if p := b.m.pods[podID]; p.closed || p.lapsed && podID != by {
			podIDs = append(podIDs, podID)
			if !p.swept {
				unswept = append(unswept, podID)
			}
		}
	}
	list := []operation{closesLapsed(by), sweepsDue(unswept)}
	after := int64(-1)
	for chunk := range slices.Chunk(b.m.pick((*modelJob).live), page) {
		list = append(list, recoversPage(podIDs, after, page, maxCrashes))
		after = chunk[len(chunk)-1].ID
	}
	return append(list, recoversPage(podIDs, after, page, maxCrashes), swept(podIDs))
}

// settle finishes all jobs, to check that no accepted job was lost.
func (b *bench) settle() {
	b.t.Helper()
	for _, podID := range slices.Sorted(maps.Keys(b.m.pods)) {
		if b.m.open(podID) {
			b.try(lapses(podID))
		}
	}
	b.try(b.join())
	last := bootOf(b.podIDs)
	for _, v := range b.sweep(last, 1000, 3) {
		b.try(v)
	}
	for _, j := range b.m.pick((*modelJob).parked) {
		b.try(comesDue(j.ID))
	}
	b.try(promotes(1000))
	everywhere := []store.Want{{Lane: "default", N: 1000}, {Lane: "side", N: 1000}}
	for n := len(b.m.jobs) + 1; ; n-- {
		b.try(admitsMissed())
		b.try(claims(last, everywhere, []string{"k", "other"}, true))
		var ends []store.Ending
		for _, j := range b.m.pick((*modelJob).runs) {
			ends = append(ends, store.Ending{ID: j.ID, Fence: j.fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK})
		}
		if len(ends) == 0 {
			break
		}
		b.try(finishes(last, ends...))
		if n == 0 {
			b.t.Fatalf("claims still return jobs after all jobs have been claimed")
		}
	}
	if left := b.m.pick(func(j *modelJob) bool { return !j.done() }); len(left) > 0 {
		b.t.Fatalf("job %d can never end: it is %s in %s", left[0].ID, left[0].state, left[0].place)
	}
	if len(b.m.keys) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(b.m.runs)), func(r modelRun) bool { return r.state == "held" }) {
		b.t.Fatalf("keys or subjects are taken without a job: %v %v", b.m.keys, b.m.runs)
	}
}
