//go:build long

package store_test

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// A bulk command finds its jobs quickly in a large backlog or history, even if the planner's statistics are wrong.
func TestFilteredJobsInLongBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id)
		select i, case when i % 1000 = 0 then 'rare' else 'k' end, 'default', '', '{}', i from generate_series(1, 100000) i`)
	w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
		select i, case when i % 10 = 0 then 'failed' else 'succeeded' end, 'ok', 'ok', 1, 3, 1, 1, 0, 0, 'default' from generate_series(1, 40000) i`)
	w.exec(`insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
		select id, now(), 1, 0, 'pending', lane, kind, subject from trapeze.jobs where id > 40000 and id % 50 > 0`)
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
		select id, 'scheduled', now(), 1, 0, lane, kind, subject from trapeze.jobs where id > 40000 and id % 50 = 0`)
	w.exec(`analyze trapeze.jobs, trapeze.done, trapeze.live, trapeze.parked`)
	defer w.exec(`truncate trapeze.jobs, trapeze.done, trapeze.live, trapeze.parked`)
	page := func(found int, f job.Filter, ended bool, after int64) {
		t.Helper()
		began := time.Now()
		ids, err := admin.Match(w.ctx(), w.Store, f, ended, after, 1000)
		w.is.NoErr(err)
		w.is.Equal(len(ids), found)
		w.is.True(time.Since(began) < 8*time.Second) // takes 30 ms, or more than 10 s if the planner starts with the jobs table
	}
	page(1000, job.Filter{States: []job.State{job.Pending}}, false, 0)
	page(60, job.Filter{Kind: "rare"}, false, 0)
	page(1000, job.Filter{Lane: "default"}, false, 79_500)
	page(0, job.Filter{Kind: "none"}, false, 0)
	page(1, job.Filter{Pipeline: 90_000}, false, 0)
	failed := []job.State{job.Failed}
	page(1000, job.Filter{States: failed}, true, 0)
	page(500, job.Filter{States: failed}, true, 35_000)
	page(40, job.Filter{States: failed, Kind: "rare"}, true, 0)
	page(0, job.Filter{States: []job.State{job.Cancelled}}, true, 0)
}
