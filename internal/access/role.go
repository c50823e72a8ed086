package access

import (
	"maps"
	"slices"
)

// Scope defines which jobs and pipelines a permission covers.
type Scope string

// These are the scopes of a role.
const (
	Own Scope = "own" // jobs and pipelines that the principal submitted
	All Scope = "all"
)

// Role is a named set of permissions.
type Role struct {
	Name        string
	Permissions []Permission
	Scope       Scope
}

// These are the built-in roles. They cannot be changed, but other roles can be added.
const (
	Viewer        = "viewer"
	Submitter     = "submitter"
	Operator      = "operator"
	PlatformAdmin = "platform_admin"
	Worker        = "worker" // for remote workers; can run jobs, but use no other route
)

// BuiltIn lists the built-in roles, starting with the one that has the fewest permissions.
var BuiltIn = []Role{
	{Viewer, []Permission{JobsRead, WorkersView}, All},
	{Submitter, []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsArgs}, Own},
	{Operator, []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, WorkersView, WorkersManage, SchedulesManage,
		AuditRead}, All},
	{PlatformAdmin, Permissions, All},
	{Worker, []Permission{WorkersStream}, Own},
}

// BuiltInRole returns a built-in role by name.
func BuiltInRole(name string) (Role, bool) {
	i := slices.IndexFunc(BuiltIn, func(r Role) bool { return r.Name == name })
	if i < 0 {
		return Role{}, false
	}
	return BuiltIn[i], true
}

// Rights holds the combined permissions of several roles. If one of the roles grants a permission for all jobs, the permission covers all
// jobs.
type Rights map[Permission]Scope

// RightsOf returns the combined permissions of roles.
func RightsOf(roles ...Role) Rights {
	rights := Rights{}
	for _, role := range roles {
		for _, what := range role.Permissions {
			if rights[what] != All {
				rights[what] = role.Scope
			}
		}
	}
	return rights
}

// List returns the permissions, sorted.
func (r Rights) List() []Permission { return slices.Sorted(maps.Keys(r)) }
