package host

import (
	"errors"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Results of a remote worker's report, as labels.
const (
	reportAccepted  = "accepted"
	reportDuplicate = "duplicate"
	reportStale     = "stale"
)

// Reasons for giving back a claim of a remote worker without a verdict.
const (
	whyUnsent         = "could not send it to its worker"
	whyShutdown       = "the pod is shutting down"
	whyUnacknowledged = "not acknowledged by its worker"
	whyCut            = "its worker's stream ended before the acknowledgement"
	whyForgotten      = "its worker no longer runs it"
	whyReported       = "reported by its worker"
)

// returnLabels maps these reasons to labels. Any other reason comes from a worker and counts as handedBack.
var returnLabels = map[string]string{
	whyUnsent: "unsent", whyShutdown: "shutdown", whyUnacknowledged: "unacknowledged", whyCut: "unacknowledged", whyForgotten: "forgotten",
	whyReported: "forgotten", "": handedBack,
}

const handedBack = "handed_back"

// registerCounts initializes the counters of reports and returned claims with 0, so that the first event shows as a
// rise.
func registerCounts(m *telemetry.Metrics) {
	for _, reason := range returnLabels {
		m.RemoteReturned.WithLabelValues(reason)
	}
	for _, status := range []string{reportAccepted, reportDuplicate, reportStale} {
		m.RemoteReports.WithLabelValues(status)
	}
}

// countReturned counts a returned claim.
func (h *Host) countReturned(why string) {
	reason, known := returnLabels[why]
	if !known {
		reason = handedBack
	}
	h.pod.Metrics.RemoteReturned.WithLabelValues(reason).Inc()
}

// countReport counts a report with a final answer. A report that the worker repeats is counted when that answer is sent.
func (h *Host) countReport(duplicate bool, err error) {
	switch {
	case errors.Is(err, job.ErrLeaseLost):
		h.pod.Metrics.RemoteReports.WithLabelValues(reportStale).Inc()
	case err != nil:
	case duplicate:
		h.pod.Metrics.RemoteReports.WithLabelValues(reportDuplicate).Inc()
	default:
		h.pod.Metrics.RemoteReports.WithLabelValues(reportAccepted).Inc()
	}
}

// Connected implements [pod.WorkerSessions].
func (h *Host) Connected() (n int) {
	for _, g := range h.list() {
		select {
		case <-g.claims:
		default:
			n++
		}
	}
	return n
}
