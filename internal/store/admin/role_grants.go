package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

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
	limit := f.Limit
	if limit <= 0 {
		limit = 50
	}
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[RoleGrant], roleGrantsSQL, store.Some(f.Principal), store.Some(f.Role), f.After.Principal,
		f.After.Role, min(limit, 1000))
	if err != nil {
		return nil, fmt.Errorf("list the grants of roles: %w", err)
	}
	return list, nil
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
