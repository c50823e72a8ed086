package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// rightsFor is the lifetime of cached roles and grants. A change takes effect immediately on the pod that makes it, and within rightsFor on
// other pods. A change made with plain SQL takes effect on every pod within rightsFor.
const rightsFor = 2 * time.Second

// maxRights is the maximum number of principals whose permissions are cached.
const maxRights = 4096

// rights computes permissions from the roles in a principal's token and in the grants table. It is safe for concurrent use.
type rights struct {
	store *store.Store

	mu      sync.Mutex
	known   map[string]cachedRights
	forgets int // number of calls of forget; rights read before a call are not cached after it
}

type cachedRights struct {
	rights access.Rights
	caps   access.Caps
	until  time.Time
}

func newRights(st *store.Store) *rights { return &rights{store: st, known: map[string]cachedRights{}} }

// of returns a principal's permissions and caps. A role that does not exist grants nothing.
func (r *rights) of(ctx context.Context, p access.Principal) (cachedRights, error) {
	key := strings.Join(append([]string{p.Name}, p.Roles...), "\x00")
	r.mu.Lock()
	found, ok := r.known[key]
	forgets := r.forgets
	r.mu.Unlock()
	now := time.Now()
	if ok && now.Before(found.until) {
		return found, nil
	}
	granted, custom, err := admin.RolesOf(ctx, r.store, p.Name, p.Roles)
	if err != nil {
		return cachedRights{}, err
	}
	var roles []access.Role
	for _, one := range custom {
		roles = append(roles, roleOf(one))
	}
	for _, name := range slices.Concat(p.Roles, granted) {
		if role, ok := access.BuiltInRole(name); ok {
			roles = append(roles, role)
		}
	}
	all := cachedRights{access.RightsOf(roles...), access.CapsOf(roles...), now.Add(rightsFor)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRights {
		clear(r.known)
	}
	if r.forgets == forgets {
		r.known[key] = all
	}
	return all, nil
}

// forget drops the cached permissions of every principal.
func (r *rights) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
	r.forgets++
}

// roleOf converts a row of the role table. Permissions that this release does not know are ignored.
func roleOf(one admin.Role) access.Role {
	role := access.Role{Name: one.Name, Scope: access.Own, Caps: access.Caps{Priority: one.MaxPriority, Attempts: one.MaxAttempts}}
	if one.MaxDelayMS != nil {
		role.Caps.Delay = new(time.Duration(*one.MaxDelayMS) * time.Millisecond)
	}
	if one.Scope == string(access.All) {
		role.Scope = access.All
	}
	for _, what := range one.Permissions {
		role.Permissions = append(role.Permissions, access.Permission(what))
	}
	return role
}
