package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
)

// Role is a custom role. The API defines the meaning of its permissions.
type Role struct {
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"` // "own" or "all"
	Caps
}

// Caps limits the settings with which a role may submit jobs. A nil field means no limit.
type Caps struct {
	MaxPriority *int   `json:"max_priority,omitempty"`
	MaxDelayMS  *int64 `json:"max_delay_ms,omitempty"`
	MaxAttempts *int   `json:"max_attempts,omitempty"`
}

// String lists the caps, for example "priority at most 10, delay at most 1h0m0s". Without caps it is empty.
func (c Caps) String() string {
	var list []string
	if c.MaxPriority != nil {
		list = append(list, fmt.Sprintf("priority at most %d", *c.MaxPriority))
	}
	if c.MaxDelayMS != nil {
		list = append(list, fmt.Sprintf("delay at most %s", time.Duration(*c.MaxDelayMS)*time.Millisecond))
	}
	if c.MaxAttempts != nil {
		list = append(list, fmt.Sprintf("attempts at most %d", *c.MaxAttempts))
	}
	return strings.Join(list, ", ")
}

const capColumns = `max_priority, max_delay_ms, max_attempts`

// rolesOfSQL reads a principal's roles, both from the token and from grants. For a role that is not in the table, permissions is null.
// Plan: grants_pkey; roles_pkey for each.
const rolesOfSQL = `
select h.role, r.permissions, r.scope, ` + capColumns + `
from (select unnest($2::text[]) as role union select g.role from trapeze.grants g where g.principal = $1) h
left join trapeze.roles r on r.name = h.role
order by h.role`

// RolesOf returns the roles granted to a principal, and the definitions of all custom roles that the principal holds. The has argument
// lists the roles in the principal's token.
func RolesOf(ctx context.Context, s *store.Store, principal string, has []string) (granted []string, custom []Role, err error) {
	type held struct {
		Role        string
		Permissions []string
		Scope       *string
		Caps
	}
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[held], rolesOfSQL, principal, has)
	if err != nil {
		return nil, nil, fmt.Errorf("read the roles of %s: %w", principal, err)
	}
	for _, one := range list {
		if !slices.Contains(has, one.Role) {
			granted = append(granted, one.Role)
		}
		if one.Scope != nil {
			custom = append(custom, Role{Name: one.Role, Permissions: one.Permissions, Scope: *one.Scope, Caps: one.Caps})
		}
	}
	return granted, custom, nil
}

// ErrNoSuchRole means that a role or a role grant does not exist.
var ErrNoSuchRole = errors.New("no such role")

// rolesSQL lists the custom roles. Plan: one pass over roles, which is small.
const rolesSQL = `select name, permissions, scope, ` + capColumns + ` from trapeze.roles order by name`

// Roles returns the custom roles.
func Roles(ctx context.Context, s *store.Store) ([]Role, error) {
	return view.Rows(ctx, s, "list roles", pgx.RowToStructByPos[Role], rolesSQL)
}

// putRoleSQL adds or changes a role, and returns its previous value. Plan: roles_pkey.
const putRoleSQL = `
with was as (select * from trapeze.roles where name = $1 for update), put as (
	insert into trapeze.roles (name, permissions, scope, ` + capColumns + `) values ($1, $2, $3, $4, $5, $6)
	on conflict (name) do update set permissions = excluded.permissions, scope = excluded.scope,
		max_priority = excluded.max_priority, max_delay_ms = excluded.max_delay_ms, max_attempts = excluded.max_attempts
)
select name, permissions, scope, ` + capColumns + ` from was`

// PutRole adds or changes a role, and writes an audit entry.
func PutRole(ctx context.Context, s *store.Store, r Role, actor string) error {
	return withAudit(ctx, s, AuditEntry{Actor: actor, Action: "role.set", Target: "role " + r.Name, After: r}, func(ctx context.Context, tx pgx.Tx, d *AuditEntry) error {
		was, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[Role], putRoleSQL, r.Name, r.Permissions, r.Scope, r.MaxPriority, r.MaxDelayMS, r.MaxAttempts)
		if err == nil && len(was) == 1 {
			d.Before = was[0]
		}
		return err
	})
}

// deleteRoleSQL deletes a role and its grants. It returns the role and the principals that held it. Plan: roles_pkey; one pass over grants,
// which is small and rarely read this way.
const deleteRoleSQL = `
with gone as (delete from trapeze.roles where name = $1 returning permissions, scope),
taken as (delete from trapeze.grants where role = $1 and exists (select from gone) returning principal)
select permissions, scope, (select coalesce(array_agg(principal order by principal), '{}') from taken) from gone`

// DeleteRole deletes a custom role and its grants, so that no principal inherits a role of the same name that is created later. DeleteRole
// returns [ErrNoSuchRole] if the role does not exist.
func DeleteRole(ctx context.Context, s *store.Store, name, actor string) error {
	return withAudit(ctx, s, AuditEntry{Actor: actor, Action: "role.delete", Target: "role " + name}, func(ctx context.Context, tx pgx.Tx, d *AuditEntry) error {
		type role struct {
			Permissions []string `json:"permissions"`
			Scope       string   `json:"scope"`
			Principals  []string `json:"principals"`
		}
		was, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[role], deleteRoleSQL, name)
		if err == nil && len(was) == 0 {
			err = fmt.Errorf("delete role %s: %w", name, ErrNoSuchRole)
		}
		if err == nil {
			d.Before = was[0]
		}
		return err
	})
}

// RoleGrant grants a role to a principal, in addition to the roles in the principal's token.
type RoleGrant struct {
	Principal string `json:"principal"`
	Role      string `json:"role"`
}

// RoleGrantFilter selects role grants. Zero fields match everything.
type RoleGrantFilter struct {
	Principal string
	Role      string
	After     RoleGrant // the last grant on the previous page
	Limit     int       // the default is 50, the maximum 1000
}

// roleGrantsSQL lists role grants. Plan: grants_pkey, stops at the limit.
const roleGrantsSQL = `
select principal, role from trapeze.grants
where (principal, role) > ($3, $4) and ($1::text is null or principal = $1) and ($2::text is null or role = $2)
order by principal, role limit $5`

// RoleGrants lists role grants, ordered by principal and role.
func RoleGrants(ctx context.Context, s *store.Store, f RoleGrantFilter) ([]RoleGrant, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[RoleGrant], roleGrantsSQL, store.Some(f.Principal), store.Some(f.Role), f.After.Principal,
		f.After.Role, view.PageSize(f.Limit))
	return list, text.Wrap(err, "list the grants of roles")
}

// grantRoleSQL grants a role to a principal. It returns a row if the principal did not hold the role. Plan: grants_pkey.
const grantRoleSQL = `insert into trapeze.grants (principal, role) values ($1, $2) on conflict do nothing returning principal, role`

// GrantRole grants a role to a principal. It writes an audit entry unless the principal already holds the role.
func GrantRole(ctx context.Context, s *store.Store, g RoleGrant, actor string) error {
	return changeGrant(ctx, s, AuditEntry{Actor: actor, Action: "role.grant", Target: "role " + g.Role, After: g}, g, grantRoleSQL)
}

// revokeRoleSQL revokes a principal's role. It returns a row if the principal held the role. Plan: grants_pkey.
const revokeRoleSQL = `delete from trapeze.grants where principal = $1 and role = $2 returning principal, role`

// RevokeRole revokes a principal's role. It writes an audit entry if the principal held the role.
func RevokeRole(ctx context.Context, s *store.Store, g RoleGrant, actor string) error {
	return changeGrant(ctx, s, AuditEntry{Actor: actor, Action: "role.revoke", Target: "role " + g.Role, Before: g}, g, revokeRoleSQL)
}

func changeGrant(ctx context.Context, s *store.Store, d AuditEntry, g RoleGrant, sql string) error {
	return withAudit(ctx, s, d, func(ctx context.Context, tx pgx.Tx, d *AuditEntry) error {
		changed, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[RoleGrant], sql, g.Principal, g.Role)
		if len(changed) == 0 {
			d.Action = "" // nothing has changed
		}
		return err
	})
}
