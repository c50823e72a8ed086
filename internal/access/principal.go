package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Principal is the sender of a request, as an [Authenticator] determined it.
type Principal struct {
	// Name is the submitter of its jobs and the actor of its commands: 1 to 200 bytes, the same in every request.
	Name string
	// Roles are the roles that its token, its session or the proxy grants. The table of grants may add more.
	Roles []string
	// Kinds and Lanes restrict a remote worker to jobs of these kinds and lanes: names, or patterns such as gpu.*. Empty: all.
	Kinds, Lanes []string

	rights Rights
}

// Validate returns an error for a principal whose name could be confused with another's, or with a name that the program uses in
// the history.
func (p Principal) Validate() error {
	switch {
	case p.Name == "" || len(p.Name) > 200 || !utf8.ValidString(p.Name):
		return fmt.Errorf("principal %q: want 1 to 200 bytes of text", p.Name)
	case strings.ContainsFunc(p.Name, unicode.IsControl) || strings.TrimSpace(p.Name) != p.Name:
		return fmt.Errorf("principal %q: want no control characters and no surrounding spaces", p.Name)
	case p.Name == "system" || p.Name == "handler":
		return fmt.Errorf("principal %q is reserved", p.Name)
	}
	return nil
}

// With returns p with the permissions of its roles.
func (p Principal) With(rights Rights) Principal {
	p.rights = rights
	return p
}

// Can reports whether p has a permission, and whether only for its own jobs and pipelines: those that it submitted.
func (p Principal) Can(what Permission) (allowed, own bool) {
	if what == Nothing {
		return true, false
	}
	scope, allowed := p.rights[what]
	return allowed, allowed && scope == Own
}

// Owner returns the submitter on whose jobs p may use a permission: p's name if it covers own jobs only, empty if it covers all.
// The result is meaningless without the permission.
func (p Principal) Owner(what Permission) string {
	if _, own := p.Can(what); own {
		return p.Name
	}
	return ""
}

// Sees reports whether p has a permission for the jobs of a submitter.
func (p Principal) Sees(what Permission, submitter string) bool {
	allowed, own := p.Can(what)
	return allowed && (!own || submitter == p.Name)
}

// MayRun reports whether p may run jobs of a kind as a remote worker.
func (p Principal) MayRun(kind string) bool { return within(p.Kinds, kind) }

// MayUse reports whether p may run jobs of a lane as a remote worker.
func (p Principal) MayUse(lane string) bool { return within(p.Lanes, lane) }

func within(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// ErrUnauthenticated means that a request has no credentials, or credentials of a type that is not accepted.
var ErrUnauthenticated = errors.New("unauthenticated")

// Authenticator returns the sender of a request. Every error means that the request is not authenticated; its text is logged and
// never sent to the caller. It is safe for concurrent use.
type Authenticator func(*http.Request) (Principal, error)

type principalKey struct{}

// Into returns a context with a principal.
func Into(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Of returns the principal of a context: one without permissions if there is none.
func Of(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
