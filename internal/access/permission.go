package access

// Permission allows one type of operation.
type Permission string

// These are all the permissions.
const (
	Nothing         Permission = "-"                // no permission is needed
	JobsRead        Permission = "jobs:read"        // list and show jobs, pipelines, their events and streams
	JobsSubmit      Permission = "jobs:submit"      // submit jobs and complete deferred jobs
	JobsCancel      Permission = "jobs:cancel"      // cancel jobs and abort pipelines
	JobsRetry       Permission = "jobs:retry"       // retry failed and cancelled jobs and pipelines
	JobsApprove     Permission = "jobs:approve"     // approve jobs
	JobsArgs        Permission = "jobs:args"        // see arguments and results unmasked
	JobsErase       Permission = "jobs:erase"       // erase the data in a subject's jobs
	JobsStack       Permission = "jobs:stack"       // see a running job's stack's handler
	WorkersView     Permission = "workers:view"     // see lanes, pods and running jobs
	WorkersManage   Permission = "workers:manage"   // change, drain and resume lanes and pods; stop and reprioritize jobs
	WorkersStream   Permission = "workers:stream"   // run jobs as a remote worker, for the kinds and lanes to which the principal is bound
	SchedulesManage Permission = "schedules:manage" // change schedules
	AuditRead       Permission = "audit:read"       // read the audit log
	RolesManage     Permission = "roles:manage"     // change roles and grants
)

// Permissions lists all permissions in the order used in the documentation.
var Permissions = []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, JobsArgs, JobsErase, JobsStack, WorkersView, WorkersManage, WorkersStream,
	SchedulesManage, AuditRead, RolesManage}
