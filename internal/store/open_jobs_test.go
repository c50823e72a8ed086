package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestRareOpenJobsList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(func(n *store.NewJob) { n.Kind = "other" })
	for range 7 {
		w.put(func(n *store.NewJob) { n.Submitter = "ana" })
	}
	w.claims(podID, 3)
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id) select g, 'k', 'default', '{}', g from generate_series(1000001, 1000300) g`)
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
		select g, case g % 3 when 0 then 'approval' when 1 then 'retry' else 'children' end, now(), 1, 10, 'default', 'k', ''
		from generate_series(1000001, 1000006) g`)
	w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
		select g, 'succeeded', 'ok', 'ok', 1, 3, 1, 1, 0, 10, 'default' from generate_series(1000007, 1000300) g`)
	w.exec(`update trapeze.jobs set created_at = now() - id % 5 * interval '1 minute'`) // gives some jobs the same creation time
	all := func(f job.Filter) (ids []int64) {
		for {
			page, err := view.Jobs(w.ctx(), w.Store, f)
			w.is.NoErr(err)
			for _, j := range page.Jobs {
				ids = append(ids, j.ID)
			}
			if f.Cursor = page.Cursor; f.Cursor == "" {
				return ids
			}
		}
	}
	open := []job.State{job.AwaitingApproval, job.Pending, job.Running, job.Waiting}
	filters := map[string]job.Filter{
		"all": {States: open}, "kind": {States: open, Kind: "other"}, "lane": {States: open, Lane: "nowhere"},
		"since": {States: open, Since: time.Now().Add(-150 * time.Second)}, "owner": {States: open, Owner: "ana"},
	}
	for _, state := range open {
		filters[string(state)] = job.Filter{States: []job.State{state}}
	}
	for name, f := range filters {
		f.Limit = 2
		begun := all(f)
		f.States = append(slices.Clone(f.States), job.Cancelled) // no job is cancelled, but one could be anywhere in the history
		if walked := all(f); !slices.Equal(begun, walked) {
			t.Errorf("%s: %v, want %v", name, begun, walked)
		}
		w.is.Equal(len(begun) == 0, name == "lane")
	}
	w.is.Equal(len(all(job.Filter{States: open, Limit: 100})), 14)
}

func TestAPodsJobsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idle, busy := w.pod("idle"), w.pod("busy")
	w.put(plain, plain, plain)
	w.claims(busy, 2)
	pods, err := view.Pods(w.ctx(), w.Store, false)
	w.is.NoErr(err)
	running := map[string]int{}
	for _, p := range pods {
		running[p.PodID] = p.Running
	}
	w.is.Equal(running, map[string]int{idle: 0, busy: 2})
}
