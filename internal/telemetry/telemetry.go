// Package telemetry holds the instruments of a pod: its metrics, with their names and labels, and the keys of its logs.
package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the counters and timings of one pod. They are a [prometheus.Collector].
type Metrics struct {
	Enqueued        prometheus.Counter
	Claims          prometheus.Counter
	Finished        *prometheus.CounterVec // error_class: empty unless it failed; kind; outcome
	Handoffs        *prometheus.CounterVec // path: fast, poll
	HandoffSeconds  prometheus.Histogram
	Recovered       *prometheus.CounterVec // reason
	RecoverySeconds prometheus.Histogram
	Fires           *prometheus.CounterVec // outcome
	FireLateness    prometheus.Histogram
	StaleWrites     prometheus.Counter
	LeasesLost      prometheus.Counter
	HistoryChanges  prometheus.Counter
	Drift           prometheus.Counter
	Stuck           prometheus.Gauge
	RunSeconds      *prometheus.HistogramVec // kind
	WaitSeconds     *prometheus.HistogramVec // lane
	DBErrors        *prometheus.CounterVec   // sqlstate_class
	Leader          prometheus.Gauge
	Chores          *prometheus.CounterVec   // chore
	ChoreErrors     *prometheus.CounterVec   // chore
	ChoreSeconds    *prometheus.HistogramVec // chore
	ChoreDone       *prometheus.GaugeVec     // chore
	Listening       prometheus.Gauge
	LaneSlots       *prometheus.GaugeVec // lane, state
	RemoteWorkers   prometheus.Gauge
	RemoteStreams   prometheus.Counter
	RemoteSent      prometheus.Counter
	RemoteReturned  *prometheus.CounterVec // reason
	RemoteReports   *prometheus.CounterVec // status
	StreamClients   prometheus.Gauge
	StreamsDropped  prometheus.Counter
	FeedLag         prometheus.Gauge

	// Of the whole fleet, from the database, the same on every pod. None of them has a value while that does not answer.
	LaneWaiting *prometheus.GaugeVec // lane
	LaneOldest  *prometheus.GaugeVec // lane
	Pods        *prometheus.GaugeVec // no label

	all []prometheus.Collector
}

// New makes the instruments of a pod, registered nowhere.
func New() *Metrics {
	m := &Metrics{}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		m.all = append(m.all, g)
		return g
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		m.all = append(m.all, g)
		return g
	}
	short := prometheus.ExponentialBuckets(0.0001, 2.5, 14)
	long := prometheus.ExponentialBuckets(0.001, 4, 12)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		m.all = append(m.all, h)
		return h
	}
	histograms := func(name, help string, buckets []float64, label string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
		m.all = append(m.all, h)
		return h
	}
	m.Enqueued = counter("trapeze_jobs_enqueued_total", "Jobs submitted by this pod.")
	m.Claims = counter("trapeze_claims_total", "Jobs claimed by this pod's poller.")
	m.Finished = counters("trapeze_jobs_finished_total", "Jobs that this pod ended, whatever ended them.", ErrorClass, Kind, "outcome")
	m.Handoffs = counters("trapeze_handoffs_total", "Starts of jobs: born running (fast) or claimed by the poller (poll).", "path")
	m.HandoffSeconds = histogram("trapeze_handoff_seconds", "From the commit of a step to the start of the next.", short)
	m.Recovered = counters("trapeze_orphans_recovered_total", "Jobs that this pod took back from pods that died or lapsed.", "reason")
	m.RecoverySeconds = histogram("trapeze_recovery_seconds", "From the end of a lapsed pod's lease to the recovery of its jobs.", long)
	m.Fires = counters("trapeze_schedule_fires_total", "Fires of schedules that this pod decided, by outcome.", "outcome")
	m.FireLateness = histogram("trapeze_schedule_lateness_seconds", "From the moment of a fire to the decision that made its job.", long)
	m.StaleWrites = counter("trapeze_stale_writes_rejected_total", "Writes of this pod that were refused because the lease was lost.")
	m.LeasesLost = counter("trapeze_leases_lost_total", "Times that this pod lost its lease.")
	m.HistoryChanges = counter("trapeze_history_changes_total", "Times that this pod found a standby promoted or a backup restored.")
	m.Drift = counter("trapeze_drift_corrected_total", "Fan-outs whose branches were counted wrong, and corrected: rows were changed by hand.")
	m.Stuck = gauge("trapeze_stuck_handlers", "Handlers that ignore the end of their context.")
	m.RunSeconds = histograms("trapeze_run_seconds", "How long handlers ran.", long, Kind)
	m.WaitSeconds = histograms("trapeze_wait_seconds", "From due to claimed.", long, Lane)
	m.DBErrors = counters("trapeze_db_errors_total", "Errors of the database, by class of SQLSTATE.", "sqlstate_class")
	m.Leader = gauge("trapeze_leader", "1 while this pod does the maintenance.")
	m.Chores = counters("trapeze_maintenance_total", "What the maintenance of this pod removed, ended, made or mended.", Chore)
	m.ChoreErrors = counters("trapeze_maintenance_errors_total", "Rounds of the maintenance that failed on this pod.", Chore)
	m.ChoreSeconds = histograms("trapeze_maintenance_seconds", "How long a round of the maintenance took on this pod.", long, Chore)
	m.ChoreDone = gauges("trapeze_maintenance_last_seconds", "When this pod last did it without an error, in seconds since 1970.", Chore)
	m.Listening = gauge("trapeze_listen_connected", "1 while wake-ups by NOTIFY arrive.")
	m.LaneSlots = gauges("trapeze_lane_slots", "This pod's slots of a lane, and those of the remote workers that it serves.", Lane, "state")
	m.LaneWaiting = gauges("trapeze_lane_waiting", "Jobs of the lane that are due and wait, on all pods together; counted up to 100,000.", Lane)
	m.LaneOldest = gauges("trapeze_lane_oldest_seconds", "For how long the oldest of them has been due; 0 when none waits.", Lane)
	m.Pods = gauges("trapeze_pods", "Pods and remote workers that are open.")
	m.RemoteWorkers = gauge("trapeze_remote_workers", "Remote workers whose streams this pod serves.")
	m.RemoteStreams = counter("trapeze_remote_streams_total", "Streams of jobs that remote workers opened on this pod.")
	m.RemoteSent = counter("trapeze_remote_jobs_sent_total", "Jobs that this pod sent to remote workers.")
	m.RemoteReturned = counters("trapeze_remote_jobs_returned_total", "Jobs of remote workers that this pod gave back without a verdict.", Reason)
	m.RemoteReports = counters("trapeze_remote_reports_total", "Reports of remote workers that this pod answered.", Status)
	m.StreamClients = gauge("trapeze_sse_clients", "Streams that this pod serves.")
	m.StreamsDropped = counter("trapeze_sse_dropped_total", "Streams that this pod ended because their clients did not keep up.")
	m.FeedLag = gauge("trapeze_feed_lag_seconds", "How long an open transaction holds up the stream of all events; 0 while nobody reads it.")
	return m
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}
