package api

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
)

var roleRoutes = []Route{
	{http.MethodGet, "/admin/roles", access.RolesManage, "List the roles: those that come with the program, and one's own", (*server).roles},
	{http.MethodPut, "/admin/roles/:name", access.RolesManage, "Add or change a role of one's own", (*server).putRole},
	{http.MethodDelete, "/admin/roles/:name", access.RolesManage, "Delete a role of one's own, and its grants", (*server).deleteRole},
	{http.MethodGet, "/admin/roles/grants", access.RolesManage, "List who was granted which role", (*server).roleGrants},
	{http.MethodPut, "/admin/roles/grants", access.RolesManage, "Grant a role to a principal", (*server).grantRole},
	{http.MethodDelete, "/admin/roles/grants", access.RolesManage, "Revoke a role from a principal", (*server).revokeRole},
}

// role is a role as JSON.
type role struct {
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"`
	BuiltIn     bool     `json:"built_in"`
}

func (s *server) roles(c echo.Context) error {
	list := []role{}
	for _, one := range access.BuiltIn {
		list = append(list, role{Name: one.Name, Permissions: names(one.Permissions), Scope: string(one.Scope), BuiltIn: true})
	}
	custom, err := s.r.Store().Roles(c.Request().Context())
	if err != nil {
		return err
	}
	for _, one := range custom {
		list = append(list, role{Name: one.Name, Permissions: one.Permissions, Scope: one.Scope})
	}
	return c.JSON(http.StatusOK, map[string]any{"roles": list})
}

func names(permissions []access.Permission) []string {
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

func (s *server) putRole(c echo.Context) error {
	var body roleBody
	if err := readJSON(c, &body); err != nil {
		return err
	}
	one := store.Role{Name: c.Param("name"), Permissions: body.Permissions, Scope: body.Scope}
	if err := changeable(one.Name); err != nil {
		return err
	}
	if err := validateRole(one); err != nil {
		return invalid("role %s: %s", one.Name, err)
	}
	if err := s.r.Store().PutRole(c.Request().Context(), one, caller(c).Name); err != nil {
		return err
	}
	s.rights.forget()
	return c.JSON(http.StatusOK, role{Name: one.Name, Permissions: one.Permissions, Scope: one.Scope})
}

// changeable refuses the names of roles that cannot be one's own.
func changeable(name string) error {
	if !validRole.MatchString(name) || name == "grants" {
		return invalid("a role cannot be called %q: want %s, and not grants", name, validRole)
	}
	if _, builtIn := access.BuiltInRole(name); builtIn {
		return &problem{status: http.StatusConflict, code: "role_built_in", message: "this role comes with the program and stays as it is",
			detail: "make one of another name"}
	}
	return nil
}

func validateRole(one store.Role) error {
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
			return fmt.Errorf("permission %q is named twice", what)
		case one.Scope == string(access.Own) && !strings.HasPrefix(what, "jobs:"):
			return fmt.Errorf("permission %q is not for jobs, and so for nobody's own: want the scope all", what)
		}
	}
	return nil
}

func (s *server) deleteRole(c echo.Context) error {
	name := c.Param("name")
	if err := changeable(name); err != nil {
		return err
	}
	if err := s.r.Store().DeleteRole(c.Request().Context(), name, caller(c).Name); err != nil {
		return err
	}
	s.rights.forget()
	return c.NoContent(http.StatusNoContent)
}
