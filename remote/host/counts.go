package host

import (
	"errors"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// What a report of a remote worker was answered, as a label.
const (
	reportAccepted  = "accepted"
	reportDuplicate = "duplicate"
	reportStale     = "stale"
)

// Why a claim of a remote worker is given back without a verdict.
const (
	whyUnsent         = "could not send it to its worker"
	whyShutdown       = "the pod is shutting down"
	whyUnacknowledged = "not acknowledged by its worker"
	whyCut            = "its worker's stream ended before the acknowledgement"
	whyForgotten      = "its worker no longer runs it"
	whyReported       = "reported by its worker"
)

// returnedFor are those as labels; whatever else a worker says is handedBack.
var returnedFor = map[string]string{
	whyUnsent: "unsent", whyShutdown: "shutdown", whyUnacknowledged: "unacknowledged", whyCut: "unacknowledged", whyForgotten: "forgotten",
	whyReported: "forgotten", "": handedBack,
}

const handedBack = "handed_back"

// registerCounts makes the counters of reports and returned claims appear at 0, so that the first event shows as a rise.
func registerCounts(m *telemetry.Metrics) {
	for _, reason := range returnedFor {
		m.RemoteReturned.WithLabelValues(reason)
	}
	for _, status := range []string{reportAccepted, reportDuplicate, reportStale} {
		m.RemoteReports.WithLabelValues(status)
	}
}

// countReturned counts a claim that is given back.
func (h *Host) countReturned(why string) {
	reason, known := returnedFor[why]
	if !known {
		reason = handedBack
	}
	h.pod.Metrics.RemoteReturned.WithLabelValues(reason).Inc()
}

// countReport counts a report that was answered for good: one that comes again is counted then.
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
