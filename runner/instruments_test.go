package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// gathered collects a runner's metrics once. A metric with one label is keyed as name{label}; series with more labels are summed.
func gathered(t *testing.T, r *runner.Runner) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	scraped(t, r, func(name string, labels []string, value float64) {
		if len(labels) == 1 {
			name += "{" + labels[0] + "}"
		}
		all[name] += value
	})
	return all
}

func TestFleetBacklogMetrics(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('slow', 0)`)
	a := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	pgtest.Wait(t, "both pods exist", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.pods where closed_at is null`) == 2
	})
	for range 3 {
		enqueue(t, a, rawArgs("k"), runner.Lane("slow"))
	}
	exec(t, pool, `update trapeze.live set ready_at = now() - interval '1 hour' where id = (select min(id) from trapeze.live)`)
	exec(t, pool, `update trapeze.live set ready_at = 'epoch' where id = (select max(id) from trapeze.live)`)
	all := gathered(t, a)
	is.Equal(all["trapeze_pods"], 2.0)                        // all pods are counted, not only this one
	is.Equal(all["trapeze_lane_waiting{slow}"], 3.0)          // the recovered job is included
	is.True(all["trapeze_lane_oldest_seconds{slow}"] >= 3600) // age of the oldest job
	is.True(all["trapeze_lane_oldest_seconds{slow}"] < 3660)  // the recovered job's ready_at, which is the epoch, is ignored
	is.Equal(all["trapeze_lane_waiting{default}"], 0.0)       // a lane without waiting jobs reports 0
	is.Equal(all["trapeze_lane_oldest_seconds{default}"], 0.0)
}

func TestManyScrapesAreOneStatement(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var o overheard
	r := newRunner(t, o.pool(t), runner.Options{}, nil)
	asked := func() (n int) { return o.so()["select coalesce(n.template, n.name), sum((select count(*)::int from ("] }
	began := time.Now()
	for range 20 {
		is.Equal(len(gathered(t, r)) > 0, true) // each scrape succeeds
	}
	is.True(asked() >= 1)                                    // the database was queried
	is.True(asked() <= 1+int(time.Since(began).Seconds()/5)) // at most once every five seconds
}

func TestScrapeDuringDatabaseOutage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	proxy, cut := cable(t, pgtest.URL(t))
	r := newRunner(t, cut, runner.Options{}, nil)
	proxy.Blackhole()
	defer proxy.Pass()
	began := time.Now()
	all := gathered(t, r)
	is.True(time.Since(began) < 10*time.Second) // collecting the metrics waits for at most a second
	_, told := all["trapeze_pods"]
	is.True(!told) // unknown metrics are omitted
	_, told = all["trapeze_leader"]
	is.True(told) // known metrics are reported
}

func TestCountersInNormalOperation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"first":  func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("second")), nil },
		"second": succeed,
		"fails":  func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") },
	})
	pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := r.Ready(); return ready })
	enqueue(t, r, rawArgs("first"))
	_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("fails"), rawArgs("fails")}) // these jobs are claimed by a poll
	is.NoErr(err)
	quiet(t, pool)
	pgtest.Wait(t, "every end is counted", func() bool { return metricValue(t, r, "trapeze_jobs_finished_total") == 4 })
	is.Equal(metricValue(t, r, "trapeze_jobs_enqueued_total"), 3.0) // a next step is not a submission
	is.True(metricValue(t, r, "trapeze_claims_total") >= 2)
	is.Equal(metricValue(t, r, "trapeze_handoffs_total"), 4.0)
	is.True(metricValue(t, r, "trapeze_handoff_seconds") >= 1)
	is.Equal(metricValue(t, r, "trapeze_run_seconds"), 4.0)
	is.Equal(metricValue(t, r, "trapeze_wait_seconds"), metricValue(t, r, "trapeze_claims_total")) // one wait per claim
}
