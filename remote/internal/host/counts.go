package host

import (
	"errors"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Results of remote workers' reports, used as metric labels.
const (
	reportAccepted  = "accepted"
	reportDuplicate = "duplicate"
	reportStale     = "stale"
)

// Reasons for handing back a remote worker's claim without an outcome.
const (
	whyUnsent         = "could not send it to its worker"
	whyShutdown       = "the pod is shutting down"
	whyUnacknowledged = "not acknowledged by its worker"
	whyCut            = "its worker's stream ended before the acknowledgement"
	whyForgotten      = "its worker no longer runs it"
	whyReported       = "reported by its worker"
)

// returnLabels maps the reasons for handing back a claim to metric labels. Any other reason comes from a worker and is counted as
// handedBack.
var returnLabels = map[string]string{
	whyUnsent: "unsent", whyShutdown: "shutdown", whyUnacknowledged: "unacknowledged", whyCut: "unacknowledged", whyForgotten: "forgotten",
	whyReported: "forgotten", "": handedBack,
}

const handedBack = "handed_back"

// registerCounts initializes the counters of reports and handed-back claims to 0, so that the first event shows up as an increase.
func registerCounts(m *telemetry.Metrics) {
	for _, reason := range returnLabels {
		m.RemoteReturned.WithLabelValues(reason)
	}
	for _, status := range []string{reportAccepted, reportDuplicate, reportStale} {
		m.RemoteReports.WithLabelValues(status)
	}
}

// countReturned counts a claim that was handed back for the given reason.
func (h *Host) countReturned(why string) {
	reason, known := returnLabels[why]
	if !known {
		reason = handedBack
	}
	h.pod.Metrics.RemoteReturned.WithLabelValues(reason).Inc()
}

// countReport counts a report once its final result is known. If the worker repeats a report, only the attempt that produces the final
// result is counted.
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
