// Package metrics exports a runner's metrics to Prometheus. It is a separate package so that programs that do not use it do not link the
// Prometheus client. The metrics are listed in docs/reference.md. To export them to OpenTelemetry, wrap the registry with
// go.opentelemetry.io/contrib/bridges/prometheus.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/runner"
)

// Collector returns a Prometheus collector for a runner's metrics. Collecting reads the state of lanes and pods from the database at most
// once every five seconds. Collector is safe for concurrent use.
func Collector(r *runner.Runner) prometheus.Collector {
	pod := inside.Of(r).Pod
	return newCollector(pod.Metrics.Set.Metrics(), pod.Measured)
}

type collector struct {
	types     []telemetry.Type                            // of each metric
	described []*prometheus.Desc                          // of each metric
	each      func(func(at int, series telemetry.Series)) // calls its argument for every series; at is the index of its metric
}

func newCollector(metrics []telemetry.Metric, each func(func(at int, series telemetry.Series))) collector {
	c := collector{each: each}
	for _, m := range metrics {
		c.types = append(c.types, m.Type)
		c.described = append(c.described, prometheus.NewDesc(m.Name, m.Help, m.Labels, nil))
	}
	return c
}

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.described {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.each(func(at int, s telemetry.Series) {
		var m prometheus.Metric
		var err error
		switch about := c.described[at]; c.types[at] {
		case telemetry.HistogramType:
			m, err = prometheus.NewConstHistogramWithCreatedTimestamp(about, s.Count, s.Value, s.AtMost, s.Since, s.Labels...)
		case telemetry.CounterType:
			m, err = prometheus.NewConstMetricWithCreatedTimestamp(about, prometheus.CounterValue, s.Value, s.Since, s.Labels...)
		default:
			m, err = prometheus.NewConstMetric(about, prometheus.GaugeValue, s.Value, s.Labels...)
		}
		if err != nil {
			m = prometheus.NewInvalidMetric(c.described[at], err)
		}
		ch <- m
	})
}
