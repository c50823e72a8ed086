package telemetry

// Counters holds the counters of job starts and recoveries, to save a lookup for each job.
type Counters struct {
	Recovered  *Counter // jobs of pods whose lease expired
	fast, poll *Counter
}

// NewCounters returns the counters of m. They start at 0, so that the first event shows up as an increase.
func NewCounters(m *Metrics) Counters {
	m.DBErrors.WithLabelValues("conn")
	return Counters{
		Recovered: m.Recovered.WithLabelValues("lease_lapsed"), fast: m.Handoffs.WithLabelValues("fast"), poll: m.Handoffs.WithLabelValues("poll"),
	}
}

// Started returns the counter of jobs started on the given path, fast or poll.
func (c *Counters) Started(path string) *Counter {
	if path == "fast" {
		return c.fast
	}
	return c.poll
}
