package metrics

import (
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// For the same events, Trapeze's metrics must yield exactly the same values as the Prometheus client library's.
func TestMetricsMatchPrometheusClient(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var set telemetry.Set
	own := prometheus.NewRegistry()
	bounds := telemetry.Exponential(0.001, 4, 12)
	is.Equal(bounds, prometheus.ExponentialBuckets(0.001, 4, 12))

	jobs, its := set.Counters("jobs_total", "Jobs, by kind.", "kind", "outcome"), prometheus.NewCounterVec(prometheus.CounterOpts{Name: "jobs_total", Help: "Jobs, by kind."}, []string{"kind", "outcome"})
	slots, itsSlots := set.Gauges("slots", "Slots \\ \"now\"\nof a lane.", "lane"), prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slots", Help: "Slots \\ \"now\"\nof a lane."}, []string{"lane"})
	idle, itsIdle := set.Gauge("idle", "Idle."), prometheus.NewGauge(prometheus.GaugeOpts{Name: "idle", Help: "Idle."})
	runs, itsRuns := set.Histograms("run_seconds", "How long.", bounds, "kind"), prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "run_seconds", Help: "How long.", Buckets: bounds}, []string{"kind"})
	_ = set.Counters("never_total", "No series, no text.", "kind")
	own.MustRegister(its, itsSlots, itsIdle, itsRuns)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		kind, outcome := []string{"a", "b", `c"\`}[random.IntN(3)], []string{"ok", "failed"}[random.IntN(2)]
		n := float64(random.IntN(5))
		took := bounds[random.IntN(len(bounds))] * []float64{0.5, 1, 1, 1.5, 5}[random.IntN(5)]
		jobs.WithLabelValues(kind, outcome).Add(n)
		its.WithLabelValues(kind, outcome).Add(n)
		runs.WithLabelValues(kind).Observe(took)
		itsRuns.WithLabelValues(kind).Observe(took)
		slots.WithLabelValues(kind).Set(n / 3)
		itsSlots.WithLabelValues(kind).Set(n / 3)
		idle.Inc()
		itsIdle.Inc()
		if random.IntN(3) == 0 {
			idle.Dec()
			itsIdle.Dec()
		}
		if random.IntN(500) == 0 {
			slots.Reset()
			itsSlots.Reset()
		}
	}
	ours := prometheus.NewRegistry()
	ours.MustRegister(newCollector(set.Metrics(), set.Each))
	is.Equal(exposition(ours), exposition(own))
}

func exposition(registry *prometheus.Registry) string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestConcurrentMetricUpdates(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var set telemetry.Set
	counts, runs := set.Counters("c", "", "kind"), set.Histogram("h", "", []float64{1, 2})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				counts.WithLabelValues("k").Inc()
				runs.Observe(1.5)
				set.Each(func(at int, s telemetry.Series) {
					if at == 1 && (s.AtMost[2] != s.Count || s.Value != 1.5*float64(s.Count)) {
						t.Errorf("a histogram that is read while it changes says %+v", s)
					}
				})
			}
		})
	}
	all.Wait()
	set.Each(func(at int, s telemetry.Series) {
		if at == 0 {
			is.Equal(s.Value, 8000.0)
		} else {
			is.Equal(s.Count, uint64(8000))
		}
	})
}
