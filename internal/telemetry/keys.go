package telemetry

// Keys of log attributes: each thing has one key, everywhere. A key that is not listed here fails a
// test.
const (
	Action       = "action" // of an operator
	Actor        = "actor"  // the operator
	Addr         = "addr"
	Attempt      = "attempt"
	Auth         = "auth" // the method of authentication
	Bin          = "bin"
	Boot         = "boot" // the pod's id, which changes with each start
	Branches     = "branches"
	Cause        = "cause" // why a context has ended
	Check        = "check" // of doctor
	Task         = "task"  // of the maintenance
	Count        = "count"
	Dead         = "dead" // rows of a table
	Dir          = "dir"
	Err          = "err"
	ErrorClass   = "error_class" // of a failure: see job.ErrorClass
	ErrorCode    = "error_code"  // an SQLSTATE, or the code that the handler set
	Events       = "events"      // a number of them
	Failed       = "failed"      // branches
	FailedBefore = "failed_before"
	Fence        = "fence"
	FireAt       = "fire_at"    // the time of an occurrence of a schedule
	First        = "first"      // the name of the first of several
	Goroutines   = "goroutines" // a dump of all stacks
	JobID        = "job_id"
	JobIDs       = "job_ids"
	Jobs         = "jobs" // a number of them
	Kind         = "kind"
	Kinds        = "kinds"
	Lane         = "lane"
	LeaseUntil   = "lease_until"
	Method       = "method"   // of HTTP
	Lasted       = "lasted"   // since the first failure
	LeftOut      = "left_out" // a number of log lines
	Mode         = "mode"     // of a shutdown
	Open         = "open"     // branches
	OpenBefore   = "open_before"
	Page         = "page" // of the dashboard
	Path         = "path"
	Pipeline     = "pipeline" // the id of its first job
	Pod          = "pod"      // its name
	Port         = "port"
	Reason       = "reason"     // why a job ended as it did
	RequestID    = "request_id" // of HTTP; also in the audit log
	Result       = "result"     // what the outcome of a rejected result would have been
	Route        = "route"      // of HTTP, with its parameters' names
	Running      = "running"    // a number of jobs
	Schedule     = "schedule"   // its name
	Server       = "server"     // the address of a pod
	ServerPID    = "server_pid" // of PostgreSQL
	Settings     = "settings"   // the changed ones
	Slots        = "slots"
	SpanID       = "span_id"
	Status       = "status" // of HTTP
	Step         = "step"
	Table        = "table"
	Took         = "took" // how long a handler ran
	TraceID      = "trace_id"
	Wait         = "wait" // before the next try
	What         = "what" // the message of a problem that is over
	Why          = "why"
)
