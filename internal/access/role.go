package access

import (
	"maps"
	"slices"
)

// Scope defines which jobs and pipelines a permission covers.
type Scope string

// The scopes.
const (
	Own Scope = "own" // those that the principal submitted
	All Scope = "all"
)

// Role is a set of permissions.
type Role struct {
	Name        string
	Permissions []Permission
	Scope       Scope
}

// The built-in roles. They cannot be changed; others can be added.
const (
	Viewer        = "viewer"
	Submitter     = "submitter"
	Operator      = "operator"
	PlatformAdmin = "platform_admin"
	Worker        = "worker" // a remote worker: it may run jobs, and use no other route
)

// BuiltIn lists the built-in roles, the one with the fewest permissions first.
var BuiltIn = []Role{
	{Viewer, []Permission{JobsRead, WorkersView}, All},
	{Submitter, []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsArgs}, Own},
	{Operator, []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, WorkersView, WorkersManage, SchedulesManage,
		AuditRead}, All},
	{PlatformAdmin, Permissions, All},
	{Worker, []Permission{WorkersStream}, Own},
}

// BuiltInRole returns a built-in role by its name.
func BuiltInRole(name string) (Role, bool) {
	i := slices.IndexFunc(BuiltIn, func(r Role) bool { return r.Name == name })
	if i < 0 {
		return Role{}, false
	}
	return BuiltIn[i], true
}

// Rights are the permissions of several roles together. If one of them grants a permission for all jobs, it
// covers all.
type Rights map[Permission]Scope

// RightsOf returns the permissions of roles.
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
