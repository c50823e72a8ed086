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

// Principal is who sends a request, as an [Authenticator] found out.
type Principal struct {
	// Name is the submitter of his jobs and the actor of his commands: 1 to 200 bytes, the same at every request.
	Name string
	// Roles are those that his token, his session or the proxy gives him. The table of grants may give him more.
	Roles []string
	// Kinds and Lanes bind a remote worker to jobs of these kinds and lanes: names, or patterns such as gpu.*. Empty: all.
	Kinds, Lanes []string

	rights Rights
}

// Validate reports a principal who cannot be told from others, or from what the program itself is called in the history.
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

// With returns p with the rights that his roles come to.
func (p Principal) With(rights Rights) Principal {
	p.rights = rights
	return p
}

// Can reports whether p has a permission, and whether only for jobs and pipelines of his own: those whose submitter he is.
func (p Principal) Can(what Permission) (allowed, own bool) {
	if what == Nothing {
		return true, false
	}
	scope, allowed := p.rights[what]
	return allowed, allowed && scope == Own
}

// Owner is whose jobs p may use a permission on: his own name when it is for his own only, empty when it is for all. It says
// nothing to those who lack the permission.
func (p Principal) Owner(what Permission) string {
	if _, own := p.Can(what); own {
		return p.Name
	}
	return ""
}

// Sees reports whether p has a permission for what a submitter owns.
func (p Principal) Sees(what Permission, submitter string) bool {
	allowed, own := p.Can(what)
	return allowed && (!own || submitter == p.Name)
}

// MayRun reports whether p may be sent jobs of a kind, as a remote worker.
func (p Principal) MayRun(kind string) bool { return within(p.Kinds, kind) }

// MayUse reports whether p may be sent jobs of a lane, as a remote worker.
func (p Principal) MayUse(lane string) bool { return within(p.Lanes, lane) }

func within(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// ErrUnauthenticated says that a request does not tell whose it is, or not in a way that is believed.
var ErrUnauthenticated = errors.New("unauthenticated")

// Authenticator finds out who sends a request. Every error means that nobody is believed to; its text goes to the log, never to the
// caller. It is safe for concurrent use.
type Authenticator func(*http.Request) (Principal, error)

type principalKey struct{}

// Into returns a context that knows who asks.
func Into(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Of returns who asks: a principal who may do nothing when nobody was asked.
func Of(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
