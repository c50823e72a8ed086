package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Role is a role of one's own. What its permissions mean is the API's affair.
type Role struct {
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"` // own or all
}

// rolesOfSQL reads the roles that a principal has: those of his token and those that he was granted; what one of them allows is null
// when it is not in the table. Plan: grants_pkey; roles_pkey for each.
const rolesOfSQL = `
select h.role, r.permissions, r.scope
from (select unnest($2::text[]) as role union select g.role from trapeze.grants g where g.principal = $1) h
left join trapeze.roles r on r.name = h.role
order by h.role`

// RolesOf reads which roles a principal was granted, and what those of the table allow, those that he has anyway included.
func (s *Store) RolesOf(ctx context.Context, principal string, has []string) (granted []string, custom []Role, err error) {
	type held struct {
		Role        string
		Permissions []string
		Scope       *string
	}
	list, err := rows(ctx, s, pgx.RowToStructByPos[held], rolesOfSQL, principal, has)
	if err != nil {
		return nil, nil, fmt.Errorf("read the roles of %s: %w", principal, err)
	}
	for _, one := range list {
		if !slices.Contains(has, one.Role) {
			granted = append(granted, one.Role)
		}
		if one.Scope != nil {
			custom = append(custom, Role{Name: one.Role, Permissions: one.Permissions, Scope: *one.Scope})
		}
	}
	return granted, custom, nil
}
