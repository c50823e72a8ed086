// Package telemetry reports a pod's work:
//
//	metrics.go     the pod's metrics, with their names and labels; instrument.go has counters, gauges and histograms
//	reporter.go    each finished job, counted once after its commit and passed to the host's hooks
//	minutes.go     finished jobs by minute, lane, kind and state, which the pod writes to the database once a minute
//	tracing.go     the spans of submissions and runs
//	keys.go        the attribute keys of logs; log_damped.go limits how often a log repeats the same warning
//
// Instruments do not depend on a monitoring system, so a program that exports no metrics links no exporter. Package runner/metrics converts
// a [Set] for Prometheus. Without a tracer provider, a [Tracer] creates, stores and allocates nothing. Only the caller of a [Reporter] knows
// which jobs this process has finished: it calls [Reporter.Report], [Reporter.ReportRun] or [Reporter.ReportAll] after its commit.
package telemetry

// Metrics holds a pod's metrics, all of which are also in Set.
type Metrics struct {
	Enqueued        *Counter
	Claims          *Counter
	Finished        *Vec[*Counter] // error_class (empty unless the job failed), kind, outcome
	Handoffs        *Vec[*Counter] // path: fast, poll
	HandoffSeconds  *Histogram
	Recovered       *Vec[*Counter] // reason
	Missed          *Counter
	RecoverySeconds *Histogram
	Occurrences     *Vec[*Counter] // outcome
	FireLateness    *Histogram
	StaleWrites     *Counter
	LeasesLost      *Counter
	HistoryChanges  *Counter
	Drift           *Counter
	Stuck           *Gauge
	RunSeconds      *Vec[*Histogram] // kind
	WaitSeconds     *Vec[*Histogram] // lane
	DBErrors        *Vec[*Counter]   // sqlstate_class
	Leader          *Gauge
	Tasks           *Vec[*Counter]   // task
	TaskErrors      *Vec[*Counter]   // task
	TaskSeconds     *Vec[*Histogram] // task
	TaskDone        *Vec[*Gauge]     // task
	Listening       *Gauge
	Notifications   *Counter
	LaneSlots       *Vec[*Gauge] // lane, state
	RemoteWorkers   *Gauge
	RemoteStreams   *Counter
	RemoteSent      *Counter
	RemoteReturned  *Vec[*Counter] // reason
	RemoteReports   *Vec[*Counter] // status
	StreamClients   *Gauge
	StreamsDropped  *Counter
	FeedLag         *Gauge

	// The state of the whole fleet, which is read from the database and is the same on every pod. While the database does not respond,
	// these metrics have no values.
	LaneWaiting *Vec[*Gauge] // lane
	LaneOldest  *Vec[*Gauge] // lane
	Pods        *Vec[*Gauge] // no label

	Set Set
}

// New returns a pod's metrics, without registering them with an exporter.
func New() *Metrics {
	m := &Metrics{}
	short, long := Exponential(0.0001, 2.5, 14), Exponential(0.001, 4, 12)
	m.Enqueued = m.Set.Counter("trapeze_jobs_enqueued_total", "Jobs submitted by this pod.")
	m.Missed = m.Set.Counter("trapeze_admissions_missed_total", "Jobs that waited for a free subject, or for a place of their key, until a poll of this pod admitted them.")
	m.Claims = m.Set.Counter("trapeze_claims_total", "Jobs claimed by this pod's poller.")
	m.Finished = m.Set.Counters("trapeze_jobs_finished_total", "Jobs ended by this pod, for any reason.", ErrorClass, Kind, "outcome")
	m.Handoffs = m.Set.Counters("trapeze_handoffs_total", "Starts of jobs: on insert (fast) or by the poller (poll).", "path")
	m.HandoffSeconds = m.Set.Histogram("trapeze_handoff_seconds", "Time from the commit that started a job in this process to the call of its handler.", short)
	m.Recovered = m.Set.Counters("trapeze_jobs_recovered_total", "Jobs that this pod recovered from dead or lapsed pods.", "reason")
	m.RecoverySeconds = m.Set.Histogram("trapeze_recovery_seconds", "Time from the expiry of a pod's lease to the recovery of its jobs.", long)
	m.Occurrences = m.Set.Counters("trapeze_schedule_occurrences_total", "Schedule occurrences handled by this pod, by outcome.", "outcome")
	m.FireLateness = m.Set.Histogram("trapeze_schedule_lateness_seconds", "Time from a schedule occurrence to the submission of its job.", long)
	m.StaleWrites = m.Set.Counter("trapeze_stale_writes_rejected_total", "Writes of this pod that were rejected because the lease was lost.")
	m.LeasesLost = m.Set.Counter("trapeze_leases_lost_total", "Leases lost by this pod.")
	m.HistoryChanges = m.Set.Counter("trapeze_history_changes_total", "Promotions of a standby and restores of a backup that this pod detected.")
	m.Drift = m.Set.Counter("trapeze_drift_corrected_total", "Fan-outs whose child count was wrong and corrected, because rows were changed by hand.")
	m.Stuck = m.Set.Gauge("trapeze_stuck_handlers", "Handlers that ignore their cancelled context.")
	m.RunSeconds = m.Set.Histograms("trapeze_run_seconds", "Run time of handlers.", long, Kind)
	m.WaitSeconds = m.Set.Histograms("trapeze_wait_seconds", "Time from due to claimed.", long, Lane)
	m.DBErrors = m.Set.Counters("trapeze_db_errors_total", "Database errors, by SQLSTATE class.", "sqlstate_class")
	m.Leader = m.Set.Gauge("trapeze_leader", "1 while this pod leads maintenance.")
	m.Tasks = m.Set.Counters("trapeze_maintenance_total", "Rows that maintenance on this pod removed, ended, created or repaired.", Task)
	m.TaskErrors = m.Set.Counters("trapeze_maintenance_errors_total", "Maintenance runs that failed on this pod.", Task)
	m.TaskSeconds = m.Set.Histograms("trapeze_maintenance_seconds", "Duration of maintenance runs on this pod.", long, Task)
	m.TaskDone = m.Set.Gauges("trapeze_maintenance_last_seconds", "Unix time of the last successful maintenance run on this pod.", Task)
	m.Listening = m.Set.Gauge("trapeze_listen_connected", "1 while this pod receives notifications.")
	m.Notifications = m.Set.Counter("trapeze_notifications_total", "Notifications that this pod received. In large fleets, few pods receive each one.")
	m.LaneSlots = m.Set.Gauges("trapeze_lane_slots", "Slots of a lane on this pod, including its remote workers.", Lane, "state")
	m.LaneWaiting = m.Set.Gauges("trapeze_lane_waiting", "Due jobs that wait in the lane, fleet-wide; counted up to 100,000.", Lane)
	m.LaneOldest = m.Set.Gauges("trapeze_lane_oldest_seconds", "Age of the oldest due job that waits in the lane; 0 when none waits.", Lane)
	m.Pods = m.Set.Gauges("trapeze_pods", "Open pods and remote workers.")
	m.RemoteWorkers = m.Set.Gauge("trapeze_remote_workers", "Remote workers connected to this pod.")
	m.RemoteStreams = m.Set.Counter("trapeze_remote_streams_total", "Job streams that remote workers opened on this pod.")
	m.RemoteSent = m.Set.Counter("trapeze_remote_jobs_sent_total", "Jobs sent to remote workers by this pod.")
	m.RemoteReturned = m.Set.Counters("trapeze_remote_jobs_returned_total", "Jobs of remote workers that this pod handed back without an outcome.", Reason)
	m.RemoteReports = m.Set.Counters("trapeze_remote_reports_total", "Reports of remote workers answered by this pod.", Status)
	m.StreamClients = m.Set.Gauge("trapeze_streams", "Event streams served by this pod.")
	m.StreamsDropped = m.Set.Counter("trapeze_streams_dropped_total", "Event streams that this pod closed because their clients were too slow.")
	m.FeedLag = m.Set.Gauge("trapeze_feed_lag_seconds", "Delay of the event feed caused by open transactions; 0 without readers.")
	return m
}

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
