package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// RoleGrant says that a principal has a role, beside those of his token.
type RoleGrant struct {
	Principal string `json:"principal"`
	Role      string `json:"role"`
}

// RoleGrantFilter selects grants of roles; zero fields select all.
type RoleGrantFilter struct {
	Principal string
	Role      string
	After     RoleGrant // the last one of the page before
	Limit     int       // default 50, at most 1000
}

// roleGrantsSQL lists grants. Plan: grants_pkey, stops at the limit.
const roleGrantsSQL = `
select principal, role from trapeze.grants
where (principal, role) > ($3, $4) and ($1::text is null or principal = $1) and ($2::text is null or role = $2)
order by principal, role limit $5`

// RoleGrants lists grants of roles, by principal and role.
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

// grantRoleSQL gives a role to a principal. It returns a row if he did not have it. Plan: grants_pkey.
const grantRoleSQL = `insert into trapeze.grants (principal, role) values ($1, $2) on conflict do nothing returning principal, role`

// GrantRole gives a role to a principal, with a row in the audit unless he has it already.
func GrantRole(ctx context.Context, s *store.Store, g RoleGrant, actor string) error {
	return changeGrant(ctx, s, Deed{Actor: actor, Action: "role.grant", Target: "role " + g.Role, After: g}, g, grantRoleSQL)
}

// revokeRoleSQL takes a role from a principal. It returns a row if he had it. Plan: grants_pkey.
const revokeRoleSQL = `delete from trapeze.grants where principal = $1 and role = $2 returning principal, role`

// RevokeRole takes a role from a principal, with a row in the audit if he had it.
func RevokeRole(ctx context.Context, s *store.Store, g RoleGrant, actor string) error {
	return changeGrant(ctx, s, Deed{Actor: actor, Action: "role.revoke", Target: "role " + g.Role, Before: g}, g, revokeRoleSQL)
}

func changeGrant(ctx context.Context, s *store.Store, d Deed, g RoleGrant, sql string) error {
	return withAudit(ctx, s, d, func(ctx context.Context, tx pgx.Tx, d *Deed) error {
		changed, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[RoleGrant], sql, g.Principal, g.Role)
		if len(changed) == 0 {
			d.Action = "" // nothing was done
		}
		return err
	})
}
