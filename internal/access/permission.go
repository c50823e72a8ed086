package access

// Permission is the right to perform one kind of operation.
type Permission string

// The permissions.
const (
	Nothing         Permission = "-"                // no permission is needed
	JobsRead        Permission = "jobs:read"        // list and show jobs, pipelines, their events and streams
	JobsSubmit      Permission = "jobs:submit"      // submit jobs, complete deferred ones
	JobsCancel      Permission = "jobs:cancel"      // cancel jobs, abort pipelines
	JobsRetry       Permission = "jobs:retry"       // run failed and cancelled jobs and pipelines again
	JobsApprove     Permission = "jobs:approve"     // approve jobs
	JobsArgs        Permission = "jobs:args"        // see arguments and results unmasked
	JobsErase       Permission = "jobs:erase"       // erase the data of a subject's jobs
	WorkersView     Permission = "workers:view"     // see lanes, pods and what they run
	WorkersManage   Permission = "workers:manage"   // change, drain and resume them; stop and reprioritise jobs
	WorkersStream   Permission = "workers:stream"   // run jobs as a remote worker, of the kinds and lanes to which the principal is bound
	SchedulesManage Permission = "schedules:manage" // change schedules
	AuditRead       Permission = "audit:read"       // read the audit log
	RolesManage     Permission = "roles:manage"     // change roles and grants
)

// Permissions lists all permissions, in the order of the documentation.
var Permissions = []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, JobsArgs, JobsErase, WorkersView, WorkersManage, WorkersStream,
	SchedulesManage, AuditRead, RolesManage}
