package telemetry

import "github.com/trapeze-run/trapeze/internal/instrument"

// Counters are the counters that every job increments, resolved once instead of for each job.
type Counters struct {
	Recovered  *instrument.Counter // jobs of pods whose lease lapsed
	fast, poll *instrument.Counter
}

// NewCounters returns the counters of m, initialized with 0, so that the first event shows as a rise.
func NewCounters(m *Metrics) Counters {
	m.DBErrors.WithLabelValues("conn")
	return Counters{
		Recovered: m.Recovered.WithLabelValues("lease_lapsed"), fast: m.Handoffs.WithLabelValues("fast"), poll: m.Handoffs.WithLabelValues("poll"),
	}
}

// Started returns the counter of jobs that started on a path: fast, or poll.
func (c *Counters) Started(path string) *instrument.Counter {
	if path == "fast" {
		return c.fast
	}
	return c.poll
}
