package api

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

var roleRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/roles", Needs: access.RolesManage, Summary: "List the built-in and the custom roles",
		out: object("roles", listOf(of[role]())), do: listRoles},
	{Method: http.MethodPut, Path: "/admin/roles/:name", Needs: access.RolesManage, Summary: "Create or replace a custom role",
		in: roleBody{}, out: of[role](), do: putRole},
	{Method: http.MethodDelete, Path: "/admin/roles/:name", Needs: access.RolesManage, Summary: "Delete a custom role and its grants",
		statuses: []int{http.StatusNoContent}, do: deleteRole},
	{Method: http.MethodGet, Path: "/admin/roles/grants", Needs: access.RolesManage, Summary: "List grants of roles to principals",
		query: []string{"principal", "role", "limit", "cursor"}, out: page("grants", of[admin.RoleGrant]()), do: listGrants},
	{Method: http.MethodPut, Path: "/admin/roles/grants", Needs: access.RolesManage, Summary: "Grant a role to a principal",
		in: admin.RoleGrant{}, out: of[admin.RoleGrant](), do: grantRole},
	{Method: http.MethodDelete, Path: "/admin/roles/grants", Needs: access.RolesManage, Summary: "Revoke a role from a principal",
		query: []string{"principal", "role"}, statuses: []int{http.StatusNoContent}, do: revokeRole},
}

// role is the JSON form of a role.
type role struct {
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"`
	BuiltIn     bool     `json:"built_in"`
}

func listRoles(c *call) (any, error) {
	all := []role{}
	for _, one := range access.BuiltIn {
		all = append(all, role{Name: one.Name, Permissions: permissionNames(one.Permissions), Scope: string(one.Scope), BuiltIn: true})
	}
	custom, err := admin.Roles(c.ctx(), inside.Of(c.r).Store)
	for _, one := range custom {
		all = append(all, role{Name: one.Name, Permissions: one.Permissions, Scope: one.Scope})
	}
	return map[string]any{"roles": all}, err
}

func permissionNames(permissions []access.Permission) []string {
	list := make([]string, len(permissions))
	for i, one := range permissions {
		list[i] = string(one)
	}
	return list
}

// roleBody is the body of PUT /admin/roles/:name.
type roleBody struct {
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"` // own or all
}

var validRole = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)

func putRole(c *call) (any, error) {
	body, err := readBody[roleBody](c)
	if err != nil {
		return nil, err
	}
	one := admin.Role{Name: c.Param("name"), Permissions: body.Permissions, Scope: body.Scope}
	if err := checkRoleName(one.Name); err != nil {
		return nil, err
	}
	if err := validateRole(one); err != nil {
		return nil, invalid("role %s: %s", one.Name, err)
	}
	err = admin.PutRole(c.ctx(), inside.Of(c.r).Store, one, c.caller.Name)
	return role{Name: one.Name, Permissions: one.Permissions, Scope: one.Scope}, c.rightsChanged(err)
}

// rightsChanged drops the cached permissions if a change to roles or grants succeeded, and returns err.
func (c *call) rightsChanged(err error) error {
	if err == nil {
		c.door.rights.forget()
	}
	return err
}

// checkRoleName rejects names that are not valid for a role in the table.
func checkRoleName(name string) error {
	if !validRole.MatchString(name) || name == "grants" {
		return invalid("invalid role name %q: want %s, and not grants", name, validRole)
	}
	if _, builtIn := access.BuiltInRole(name); builtIn {
		return &problem{status: http.StatusConflict, code: "role_built_in", message: "built-in roles cannot be changed",
			detail: "create a role with another name"}
	}
	return nil
}

func validateRole(one admin.Role) error {
	if one.Scope != string(access.Own) && one.Scope != string(access.All) {
		return fmt.Errorf("scope %q: want own or all", one.Scope)
	}
	if len(one.Permissions) == 0 {
		return errors.New("permissions: want at least one")
	}
	for i, what := range one.Permissions {
		switch {
		case !slices.Contains(access.Permissions, access.Permission(what)):
			return fmt.Errorf("permission %q: want some of %v", what, access.Permissions)
		case slices.Contains(one.Permissions[:i], what):
			return fmt.Errorf("permission %q is listed twice", what)
		case one.Scope == string(access.Own) && !strings.HasPrefix(what, "jobs:"):
			return fmt.Errorf("permission %q is not for jobs: scope own is impossible, want scope all", what)
		}
	}
	return nil
}

func deleteRole(c *call) (any, error) {
	name := c.Param("name")
	if err := checkRoleName(name); err != nil {
		return nil, err
	}
	return nil, c.rightsChanged(admin.DeleteRole(c.ctx(), inside.Of(c.r).Store, name, c.caller.Name))
}

func listGrants(c *call) (any, error) {
	f := admin.RoleGrantFilter{Limit: 50}
	err := eachFilter(c, func(name, value string, _ []string) (err error) {
		switch name {
		case "principal":
			f.Principal, err = storable(value)
		case "role":
			f.Role, err = storable(value)
		case "limit":
			f.Limit, err = parseLimit(value)
		case "cursor":
			if value, err = cursor.Opened("grants", value); err == nil {
				f.After.Principal, f.After.Role, _ = strings.Cut(value, "\n") // neither part can contain a line break
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found, err := admin.RoleGrants(c.ctx(), c.lists, f)
	return pageOf("grants", found, f.Limit, func(last admin.RoleGrant) string {
		return cursor.Sealed("grants", last.Principal+"\n"+last.Role)
	}), err
}

func grantRole(c *call) (any, error) {
	g, err := readBody[admin.RoleGrant](c)
	if err != nil {
		return nil, err
	}
	if err := (access.Principal{Name: g.Principal}).Validate(); err != nil {
		return nil, invalid("%s", err)
	}
	if _, builtIn := access.BuiltInRole(g.Role); !builtIn {
		custom, err := admin.Roles(c.ctx(), inside.Of(c.r).Store)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(custom, func(r admin.Role) bool { return r.Name == g.Role }) {
			return nil, invalid("unknown role %q", g.Role)
		}
	}
	return g, c.rightsChanged(admin.GrantRole(c.ctx(), inside.Of(c.r).Store, g, c.caller.Name))
}

// revokeRole reads the principal and the role from the query. Revoking a role that was not granted is not an error.
func revokeRole(c *call) (any, error) {
	principal, err1 := storable(c.QueryParam("principal"))
	name, err2 := storable(c.QueryParam("role"))
	if errors.Join(err1, err2) != nil || principal == "" || name == "" {
		return nil, invalid("want the parameters principal and role")
	}
	return nil, c.rightsChanged(admin.RevokeRole(c.ctx(), inside.Of(c.r).Store, admin.RoleGrant{Principal: principal, Role: name}, c.caller.Name))
}
