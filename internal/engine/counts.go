package engine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// leaseLapsed is why jobs are recovered.
const leaseLapsed = "lease_lapsed"

// counts are the counters that every job passes, looked up by their labels once instead of for each.
type counts struct {
	fast, poll prometheus.Counter
	Ends       *ends
}

func newCounts(m *telemetry.Metrics) counts {
	// What is there from the start, at 0, shows its first event as a rise.
	m.Recovered.WithLabelValues(leaseLapsed)
	m.DBErrors.WithLabelValues("conn")
	return counts{
		fast: m.Handoffs.WithLabelValues("fast"), poll: m.Handoffs.WithLabelValues("poll"),
		Ends: &ends{finished: m.Finished, known: map[string]*endCounters{}},
	}
}

func (c *counts) started(path string) prometheus.Counter {
	if path == "fast" {
		return c.fast
	}
	return c.poll
}
