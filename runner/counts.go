package runner

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// leaseLapsed is why jobs are recovered.
const leaseLapsed = "lease_lapsed"

// counts are the counters that every job passes, looked up by their labels once instead of for each.
type counts struct {
	fast, poll                   prometheus.Counter
	succeeded, failed, cancelled prometheus.Counter
}

func newCounts(m *telemetry.Metrics) counts {
	// What is there from the start, at 0, shows its first event as a rise.
	m.Recovered.WithLabelValues(leaseLapsed)
	m.DBErrors.WithLabelValues("conn")
	for _, reason := range returnedFor {
		m.RemoteReturned.WithLabelValues(reason)
	}
	for _, status := range []string{reportAccepted, reportDuplicate, reportStale} {
		m.RemoteReports.WithLabelValues(status)
	}
	return counts{
		fast: m.Handoffs.WithLabelValues("fast"), poll: m.Handoffs.WithLabelValues("poll"),
		succeeded: m.Finished.WithLabelValues(string(job.Succeeded)), failed: m.Finished.WithLabelValues(string(job.Failed)),
		cancelled: m.Finished.WithLabelValues(string(job.Cancelled)),
	}
}

func (c *counts) started(path string) prometheus.Counter {
	if path == "fast" {
		return c.fast
	}
	return c.poll
}

func (c *counts) finished(s job.State) prometheus.Counter {
	switch s {
	case job.Succeeded:
		return c.succeeded
	case job.Failed:
		return c.failed
	}
	return c.cancelled
}
