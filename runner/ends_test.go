package runner_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEndCountAfterLostReply(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	var told ends
	r := start(t, pool, runner.Options{OnEnd: told.add}, map[string]handler{
		"k": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Done("result-of-k"), nil },
	})
	cut := proxy.CutReplyOnce(holds("result-of-k"))
	id := enqueue(t, r, rawArgs("k"))
	<-cut
	waitEnded(t, newRunner(t, direct, runner.Options{}, nil), id)
	allCounted(t, direct, r)
	told.check(t, direct)
}

func TestForeignKindMetricsBound(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, nil)
	var list []job.Args
	for i := range 1100 {
		list = append(list, rawArgs("kind-"+strconv.Itoa(i)))
	}
	_, err := r.EnqueueMany(t.Context(), list, runner.AllowUnregistered())
	is.NoErr(err)
	m, err := r.Admin("me").CancelMany(t.Context(), runner.Filter{States: []job.State{job.Pending}}, false)
	is.NoErr(err)
	is.Equal(m.Done, 1100)
	is.Equal(metricValue(t, r, "trapeze_jobs_finished_total"), 1100.0)
	series := 0
	scraped(t, r, func(name string, _ []string, _ float64) {
		if name == "trapeze_jobs_finished_total" {
			series++
		}
	})
	is.Equal(series, 1001) // 1000 kinds, and one series for all others
}
