package api

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/internal/store"
)

func (s *server) roleGrants(c echo.Context) error {
	f := store.RoleGrantFilter{Limit: 50}
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
				f.After.Principal, f.After.Role, _ = strings.Cut(value, "\n") // neither holds a control character
			}
		default:
			err = errNoFilter
		}
		return err
	})
	if err != nil {
		return err
	}
	list, err := s.lists.RoleGrants(c.Request().Context(), f)
	if err != nil {
		return err
	}
	next := ""
	if len(list) == f.Limit {
		last := list[len(list)-1]
		next = cursor.Sealed("grants", last.Principal+"\n"+last.Role)
	}
	if list == nil {
		list = []store.RoleGrant{}
	}
	return c.JSON(http.StatusOK, map[string]any{"grants": list, "next_cursor": next})
}

func (s *server) grantRole(c echo.Context) error {
	var g store.RoleGrant
	if err := readJSON(c, &g); err != nil {
		return err
	}
	if err := (access.Principal{Name: g.Principal}).Validate(); err != nil {
		return invalid("%s", err)
	}
	if _, builtIn := access.BuiltInRole(g.Role); !builtIn {
		custom, err := s.r.Store().Roles(c.Request().Context())
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(custom, func(r store.Role) bool { return r.Name == g.Role }) {
			return invalid("there is no role %q", g.Role)
		}
	}
	if err := s.r.Store().GrantRole(c.Request().Context(), g, caller(c).Name); err != nil {
		return err
	}
	s.rights.forget()
	return c.JSON(http.StatusOK, g)
}

// revokeRole takes the principal and the role from the query: what was never granted is as good as revoked.
func (s *server) revokeRole(c echo.Context) error {
	principal, err1 := storable(c.QueryParam("principal"))
	name, err2 := storable(c.QueryParam("role"))
	if errors.Join(err1, err2) != nil || principal == "" || name == "" {
		return invalid("want the parameters principal and role")
	}
	if err := s.r.Store().RevokeRole(c.Request().Context(), store.RoleGrant{Principal: principal, Role: name}, caller(c).Name); err != nil {
		return err
	}
	s.rights.forget()
	return c.NoContent(http.StatusNoContent)
}
