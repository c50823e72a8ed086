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
	Caps        Caps
}

// These are the built-in roles. They cannot be changed, but other roles can be added.
const (
	Viewer        = "viewer"
	Submitter     = "submitter"
	Operator      = "operator"
	PlatformAdmin = "platform_admin"
	Worker        = "worker" // for remote workers, which run jobs but cannot use any other route
)

// BuiltIn lists the built-in roles. Those for people come first, in ascending order of permissions, followed by the one for remote workers.
var BuiltIn = []Role{
	{Name: Viewer, Permissions: []Permission{JobsRead, WorkersView}, Scope: All},
	{Name: Submitter, Permissions: []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsArgs}, Scope: Own},
	{Name: Operator, Permissions: []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, JobsStack, WorkersView, WorkersManage,
		SchedulesManage, AuditRead}, Scope: All},
	{Name: PlatformAdmin, Permissions: Permissions, Scope: All},
	{Name: Worker, Permissions: []Permission{WorkersStream}, Scope: Own},
}

// BuiltInRole returns a built-in role by name.
func BuiltInRole(name string) (Role, bool) {
	i := slices.IndexFunc(BuiltIn, func(r Role) bool { return r.Name == name })
	if i < 0 {
		return Role{}, false
	}
	return BuiltIn[i], true
}

// Rights holds several roles' combined permissions. A permission covers all jobs if any of the roles grants it for all jobs.
type Rights map[Permission]Scope

// RightsOf returns the roles' combined permissions.
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
