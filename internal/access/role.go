package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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

// Caps holds the highest values that a principal may set when submitting a job. A nil field means no cap.
type Caps struct {
	Priority *int
	Delay    *time.Duration
	Attempts *int
}

// CapsOf combines the caps of the roles that grant [JobsSubmit]. If roles differ, the highest cap applies.
func CapsOf(roles ...Role) (caps Caps) {
	first := true
	for _, role := range roles {
		switch {
		case !slices.Contains(role.Permissions, JobsSubmit):
			continue
		case first:
			caps, first = role.Caps, false
		default:
			caps = Caps{higher(caps.Priority, role.Caps.Priority), higher(caps.Delay, role.Caps.Delay), higher(caps.Attempts, role.Caps.Attempts)}
		}
	}
	return caps
}

// higher returns the higher of two caps, or nil if either of them is nil.
func higher[T cmp.Ordered](a, b *T) *T {
	if a == nil || b == nil {
		return nil
	}
	return new(max(*a, *b))
}

// Permission allows one type of operation.
type Permission string

// These are all the permissions.
const (
	Nothing         Permission = "-"                // no permission is needed
	JobsRead        Permission = "jobs:read"        // list and show jobs, pipelines, their events and streams
	JobsSubmit      Permission = "jobs:submit"      // submit jobs and complete deferred jobs
	JobsCancel      Permission = "jobs:cancel"      // cancel jobs and pipelines
	JobsRetry       Permission = "jobs:retry"       // retry failed and cancelled jobs and pipelines
	JobsApprove     Permission = "jobs:approve"     // approve jobs
	JobsArgs        Permission = "jobs:args"        // see arguments and results unmasked
	JobsErase       Permission = "jobs:erase"       // erase the data in a subject's jobs
	JobsStack       Permission = "jobs:stack"       // see a running job's stack's handler
	WorkersView     Permission = "workers:view"     // see lanes, pods and running jobs
	WorkersManage   Permission = "workers:manage"   // change, drain and undrain lanes and pods; stop and reprioritize jobs
	WorkersStream   Permission = "workers:stream"   // run jobs as a remote worker, for the kinds and lanes to which the principal is bound
	SchedulesManage Permission = "schedules:manage" // change schedules
	AuditRead       Permission = "audit:read"       // read the audit log
	RolesManage     Permission = "roles:manage"     // change roles and grants
)

// Permissions lists all permissions in the order used in the documentation.
var Permissions = []Permission{JobsRead, JobsSubmit, JobsCancel, JobsRetry, JobsApprove, JobsArgs, JobsErase, JobsStack, WorkersView, WorkersManage, WorkersStream,
	SchedulesManage, AuditRead, RolesManage}

// Principal is the sender of a request, as authenticated by the host.
type Principal struct {
	// Name is recorded as the submitter of the principal's jobs and as the actor of its commands. It must be 1 to 200 bytes long and the
	// same in every request.
	Name string
	// Roles lists the roles granted by the principal's token, session or proxy. The grants table can add more.
	Roles []string
	// Kinds and Lanes restrict a remote worker to jobs of these kinds in these lanes. Entries are names, or patterns such as gpu.*. An
	// empty list means no restriction.
	Kinds, Lanes []string

	rights Rights
	caps   Caps
}

// Everyone is the name of the principal behind all requests to an API without authentication.
const Everyone = "api"

// reserved lists the names that Trapeze itself uses in the history and the audit log. They represent maintenance, handlers, requests
// without valid credentials, and requests to an API without authentication.
var reserved = []string{"system", "handler", "anonymous", Everyone}

// Validate returns an error if the principal's name could be confused with another name, or with a name that Trapeze itself uses in the
// history.
func (p Principal) Validate() error {
	switch {
	case p.Name == "" || len(p.Name) > 200 || !utf8.ValidString(p.Name):
		return fmt.Errorf("principal %q: want 1 to 200 bytes of text", p.Name)
	case strings.ContainsFunc(p.Name, unicode.IsControl) || strings.TrimSpace(p.Name) != p.Name:
		return fmt.Errorf("principal %q: want no control characters and no surrounding spaces", p.Name)
	case slices.Contains(reserved, strings.ToLower(p.Name)):
		return fmt.Errorf("principal %q is reserved", p.Name)
	}
	return nil
}

// With returns a copy of p that has the given permissions.
func (p Principal) With(rights Rights) Principal {
	p.rights = rights
	return p
}

// Capped returns a copy of p with the given caps.
func (p Principal) Capped(caps Caps) Principal {
	p.caps = caps
	return p
}

// Caps returns the highest values that p may set when submitting a job.
func (p Principal) Caps() Caps { return p.caps }

// Can reports whether p has a permission, and whether the permission covers only the jobs and pipelines that p submitted.
func (p Principal) Can(what Permission) (allowed, own bool) {
	if what == Nothing {
		return true, false
	}
	scope, allowed := p.rights[what]
	return allowed, allowed && scope == Own
}

// Owner returns the submitter to whose jobs a permission is limited: p's name if the permission covers only p's own jobs, or an empty
// string if it covers all jobs. If p lacks the permission, the result is meaningless.
func (p Principal) Owner(what Permission) string {
	if _, own := p.Can(what); own {
		return p.Name
	}
	return ""
}

// CanFor reports whether p has a permission for a submitter's jobs.
func (p Principal) CanFor(what Permission, submitter string) bool {
	allowed, own := p.Can(what)
	return allowed && (!own || submitter == p.Name)
}

// MayRun reports whether p may run jobs of a kind as a remote worker.
func (p Principal) MayRun(kind string) bool { return within(p.Kinds, kind) }

// MayUse reports whether p may run jobs from a lane as a remote worker.
func (p Principal) MayUse(lane string) bool { return within(p.Lanes, lane) }

func within(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// ErrUnauthenticated means that a request has no valid credentials.
var ErrUnauthenticated = errors.New("unauthenticated")

type principalKey struct{}

// Into returns a copy of ctx that carries a principal.
func Into(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Of returns the principal in a context. If there is none, it returns a principal without permissions.
func Of(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
