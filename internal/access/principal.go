package access

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
