package telemetry

// Keys of log attributes: one word for one thing, everywhere. A key that is not here fails a test.
const (
	Action       = "action" // of an operator
	Actor        = "actor"  // who did it
	Addr         = "addr"
	Attempt      = "attempt"
	Auth         = "auth" // the way in which requests say whose they are
	Bin          = "bin"
	Boot         = "boot" // the pod's id, another one after each start
	Branches     = "branches"
	Cause        = "cause" // why a context has ended
	Chore        = "chore" // of the maintenance
	Count        = "count"
	Dir          = "dir"
	Err          = "err"
	Events       = "events" // a number of them
	Failed       = "failed" // branches
	FailedBefore = "failed_before"
	Fence        = "fence"
	FireAt       = "fire_at"    // when a schedule was to fire
	First        = "first"      // the name of the first of several
	Goroutines   = "goroutines" // a dump of all stacks
	JobID        = "job_id"
	Jobs         = "jobs" // a number of them
	Kind         = "kind"
	Kinds        = "kinds"
	Lane         = "lane"
	LeaseUntil   = "lease_until"
	Method       = "method" // of HTTP
	Mode         = "mode"   // of a shutdown
	Open         = "open"   // branches
	OpenBefore   = "open_before"
	Page         = "page" // of the dashboard
	Path         = "path"
	Pipeline     = "pipeline" // the id of its first job
	Pod          = "pod"      // its name
	Port         = "port"
	Reason       = "reason"     // why a job ended as it did
	RequestID    = "request_id" // of HTTP; also the audit's
	Result       = "result"     // what a result that came too late would have been
	Route        = "route"      // of HTTP, with its parameters' names
	Running      = "running"    // a number of jobs
	Schedule     = "schedule"   // its name
	ServerPID    = "server_pid" // of PostgreSQL
	Settings     = "settings"   // those that changed
	Slots        = "slots"
	SpanID       = "span_id"
	Status       = "status" // of HTTP
	Step         = "step"
	TraceID      = "trace_id"
	Wait         = "wait" // before another try
	Why          = "why"
)
