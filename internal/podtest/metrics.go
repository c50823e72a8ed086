package podtest

import (
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/metrics"
)

// End holds a finished job's metric labels: error class, kind and state.
type End [3]string

// Scraped calls each for every metric of a runner, with the metric's label values. For a histogram, value is the number of observations.
func Scraped(t *testing.T, r *runner.Runner, each func(name string, labels []string, value float64)) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Collector(r))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			each(f.GetName(), labels, m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()))
		}
	}
}

// MetricValue returns a metric's sum over all its label values.
func MetricValue(t *testing.T, r *runner.Runner, name string) (sum float64) {
	t.Helper()
	Scraped(t, r, func(its string, _ []string, value float64) {
		if its == name {
			sum += value
		}
	})
	return sum
}

// Finished returns the number of finished jobs that the pods have counted, by label.
func Finished(t *testing.T, pods ...*runner.Runner) map[End]int {
	t.Helper()
	all := map[End]int{}
	for _, r := range pods {
		Scraped(t, r, func(name string, labels []string, value float64) {
			if name == "trapeze_jobs_finished_total" && value > 0 {
				all[End{labels[0], labels[1], labels[2]}] += int(value)
			}
		})
	}
	return all
}

// Written returns the number of finished jobs in the tables, by label.
func Written(t *testing.T, pool *pgxpool.Pool) map[End]int {
	t.Helper()
	all := map[End]int{}
	found, err := pool.Query(t.Context(), `select coalesce(error_class, ''), kind, state, count(*)::int from trapeze.job where finished_at is not null group by 1, 2, 3`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var e End
		var n int
		if err := found.Scan(&e[0], &e[1], &e[2], &n); err != nil {
			t.Fatal(err)
		}
		all[e] = n
	}
	return all
}

// AllCounted waits until the pods have counted all finished jobs in the tables, and checks that they have counted no others.
func AllCounted(t *testing.T, pool *pgxpool.Pool, pods ...*runner.Runner) map[End]int {
	t.Helper()
	var counted, want map[End]int
	same := func() bool {
		counted, want = Finished(t, pods...), Written(t, pool)
		return maps.Equal(counted, want)
	}
	for deadline := time.Now().Add(10 * time.Second); !same() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, r := range pods {
		pgtest.Wait(t, "nothing runs", func() bool { return r.Running() == 0 })
	}
	if !same() {
		t.Fatalf("the pods count\n%v, the tables have\n%v", counted, want)
	}
	return counted
}
