// Package telemetry holds the instruments of a pod: its metrics, with their names and labels, and the keys of its logs.
package telemetry

import "github.com/trapeze-run/trapeze/internal/instrument"

// Metrics are the counters and timings of one pod. The set has them all.
type Metrics struct {
	Enqueued        *instrument.Counter
	Claims          *instrument.Counter
	Finished        *instrument.Vec[*instrument.Counter] // error_class: empty unless it failed; kind; outcome
	Handoffs        *instrument.Vec[*instrument.Counter] // path: fast, poll
	HandoffSeconds  *instrument.Histogram
	Recovered       *instrument.Vec[*instrument.Counter] // reason
	RecoverySeconds *instrument.Histogram
	Fires           *instrument.Vec[*instrument.Counter] // outcome
	FireLateness    *instrument.Histogram
	StaleWrites     *instrument.Counter
	LeasesLost      *instrument.Counter
	HistoryChanges  *instrument.Counter
	Drift           *instrument.Counter
	Stuck           *instrument.Gauge
	RunSeconds      *instrument.Vec[*instrument.Histogram] // kind
	WaitSeconds     *instrument.Vec[*instrument.Histogram] // lane
	DBErrors        *instrument.Vec[*instrument.Counter]   // sqlstate_class
	Leader          *instrument.Gauge
	Chores          *instrument.Vec[*instrument.Counter]   // chore
	ChoreErrors     *instrument.Vec[*instrument.Counter]   // chore
	ChoreSeconds    *instrument.Vec[*instrument.Histogram] // chore
	ChoreDone       *instrument.Vec[*instrument.Gauge]     // chore
	Listening       *instrument.Gauge
	LaneSlots       *instrument.Vec[*instrument.Gauge] // lane, state
	RemoteWorkers   *instrument.Gauge
	RemoteStreams   *instrument.Counter
	RemoteSent      *instrument.Counter
	RemoteReturned  *instrument.Vec[*instrument.Counter] // reason
	RemoteReports   *instrument.Vec[*instrument.Counter] // status
	StreamClients   *instrument.Gauge
	StreamsDropped  *instrument.Counter
	FeedLag         *instrument.Gauge

	// Of the whole fleet, from the database, the same on every pod. None of them has a value while that does not answer.
	LaneWaiting *instrument.Vec[*instrument.Gauge] // lane
	LaneOldest  *instrument.Vec[*instrument.Gauge] // lane
	Pods        *instrument.Vec[*instrument.Gauge] // no label

	Set instrument.Set
}

// New makes the instruments of a pod, registered nowhere.
func New() *Metrics {
	m := &Metrics{}
	short, long := instrument.Exponential(0.0001, 2.5, 14), instrument.Exponential(0.001, 4, 12)
	m.Enqueued = m.Set.Counter("trapeze_jobs_enqueued_total", "Jobs submitted by this pod.")
	m.Claims = m.Set.Counter("trapeze_claims_total", "Jobs claimed by this pod's poller.")
	m.Finished = m.Set.Counters("trapeze_jobs_finished_total", "Jobs that this pod ended, whatever ended them.", ErrorClass, Kind, "outcome")
	m.Handoffs = m.Set.Counters("trapeze_handoffs_total", "Starts of jobs: born running (fast) or claimed by the poller (poll).", "path")
	m.HandoffSeconds = m.Set.Histogram("trapeze_handoff_seconds", "From the commit of a step to the start of the next.", short)
	m.Recovered = m.Set.Counters("trapeze_orphans_recovered_total", "Jobs that this pod took back from pods that died or lapsed.", "reason")
	m.RecoverySeconds = m.Set.Histogram("trapeze_recovery_seconds", "From the end of a lapsed pod's lease to the recovery of its jobs.", long)
	m.Fires = m.Set.Counters("trapeze_schedule_fires_total", "Fires of schedules that this pod decided, by outcome.", "outcome")
	m.FireLateness = m.Set.Histogram("trapeze_schedule_lateness_seconds", "From the moment of a fire to the decision that made its job.", long)
	m.StaleWrites = m.Set.Counter("trapeze_stale_writes_rejected_total", "Writes of this pod that were refused because the lease was lost.")
	m.LeasesLost = m.Set.Counter("trapeze_leases_lost_total", "Times that this pod lost its lease.")
	m.HistoryChanges = m.Set.Counter("trapeze_history_changes_total", "Times that this pod found a standby promoted or a backup restored.")
	m.Drift = m.Set.Counter("trapeze_drift_corrected_total", "Fan-outs whose branches were counted wrong, and corrected: rows were changed by hand.")
	m.Stuck = m.Set.Gauge("trapeze_stuck_handlers", "Handlers that ignore the end of their context.")
	m.RunSeconds = m.Set.Histograms("trapeze_run_seconds", "How long handlers ran.", long, Kind)
	m.WaitSeconds = m.Set.Histograms("trapeze_wait_seconds", "From due to claimed.", long, Lane)
	m.DBErrors = m.Set.Counters("trapeze_db_errors_total", "Errors of the database, by class of SQLSTATE.", "sqlstate_class")
	m.Leader = m.Set.Gauge("trapeze_leader", "1 while this pod does the maintenance.")
	m.Chores = m.Set.Counters("trapeze_maintenance_total", "What the maintenance of this pod removed, ended, made or mended.", Chore)
	m.ChoreErrors = m.Set.Counters("trapeze_maintenance_errors_total", "Rounds of the maintenance that failed on this pod.", Chore)
	m.ChoreSeconds = m.Set.Histograms("trapeze_maintenance_seconds", "How long a round of the maintenance took on this pod.", long, Chore)
	m.ChoreDone = m.Set.Gauges("trapeze_maintenance_last_seconds", "When this pod last did it without an error, in seconds since 1970.", Chore)
	m.Listening = m.Set.Gauge("trapeze_listen_connected", "1 while wake-ups by NOTIFY arrive.")
	m.LaneSlots = m.Set.Gauges("trapeze_lane_slots", "This pod's slots of a lane, and those of the remote workers that it serves.", Lane, "state")
	m.LaneWaiting = m.Set.Gauges("trapeze_lane_waiting", "Jobs of the lane that are due and wait, on all pods together; counted up to 100,000.", Lane)
	m.LaneOldest = m.Set.Gauges("trapeze_lane_oldest_seconds", "For how long the oldest of them has been due; 0 when none waits.", Lane)
	m.Pods = m.Set.Gauges("trapeze_pods", "Pods and remote workers that are open.")
	m.RemoteWorkers = m.Set.Gauge("trapeze_remote_workers", "Remote workers whose streams this pod serves.")
	m.RemoteStreams = m.Set.Counter("trapeze_remote_streams_total", "Streams of jobs that remote workers opened on this pod.")
	m.RemoteSent = m.Set.Counter("trapeze_remote_jobs_sent_total", "Jobs that this pod sent to remote workers.")
	m.RemoteReturned = m.Set.Counters("trapeze_remote_jobs_returned_total", "Jobs of remote workers that this pod gave back without a verdict.", Reason)
	m.RemoteReports = m.Set.Counters("trapeze_remote_reports_total", "Reports of remote workers that this pod answered.", Status)
	m.StreamClients = m.Set.Gauge("trapeze_sse_clients", "Streams that this pod serves.")
	m.StreamsDropped = m.Set.Counter("trapeze_sse_dropped_total", "Streams that this pod ended because their clients did not keep up.")
	m.FeedLag = m.Set.Gauge("trapeze_feed_lag_seconds", "How long an open transaction holds up the stream of all events; 0 while nobody reads it.")
	return m
}
