package access

import (
	"maps"
	"slices"
)

// Scope is whose jobs and pipelines a permission is for.
type Scope string

// The scopes.
const (
	Own Scope = "own" // those whose submitter one is
	All Scope = "all"
)

// Role is a bundle of permissions.
type Role struct {
	Name        string
	Permissions []Permission
	Scope       Scope
}

// The roles that come with the program. They cannot be changed: others are added beside them.
const (
	Viewer        = "viewer"
	Submitter     = "submitter"
	Operator      = "operator"
	PlatformAdmin = "platform_admin"
	Worker        = "worker" // a remote worker: may take jobs, and use no other route
)

// BuiltIn are the roles that come with the program, the weakest first.
var BuiltIn = []Role{
	{Viewer, []Permission{JobsRead, WorkersView}, All},
	{Submitter, []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsArgs}, Own},
	{Operator, []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, WorkersView, WorkersManage, SchedulesManage,
		AuditRead}, All},
	{PlatformAdmin, Permissions, All},
	{Worker, []Permission{WorkersStream}, Own},
}

// BuiltInRole finds a role that comes with the program.
func BuiltInRole(name string) (Role, bool) {
	i := slices.IndexFunc(BuiltIn, func(r Role) bool { return r.Name == name })
	if i < 0 {
		return Role{}, false
	}
	return BuiltIn[i], true
}

// Rights are the permissions that several roles come to. A permission that one of them gives for all is for all.
type Rights map[Permission]Scope

// RightsOf are the rights of some roles.
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

// List are the permissions, sorted.
func (r Rights) List() []Permission { return slices.Sorted(maps.Keys(r)) }
