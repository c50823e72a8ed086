package api

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

var roleRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/roles", Needs: access.RolesManage, Summary: "List the built-in and the custom roles",
		out: object("roles", listOf(of[role]())), do: listRoles},
	{Method: http.MethodPut, Path: "/admin/roles/:name", Needs: access.RolesManage, Summary: "Create or replace a custom role",
		in: roleBody{}, out: of[role](), do: withBody(putRole)},
	{Method: http.MethodDelete, Path: "/admin/roles/:name", Needs: access.RolesManage, Summary: "Delete a custom role and its grants",
		statuses: []int{http.StatusNoContent}, do: deleteRole},
	{Method: http.MethodGet, Path: "/admin/roles/grants", Needs: access.RolesManage, Summary: "List grants of roles to principals",
		query: []string{"principal", "role", "limit", "cursor"}, out: page("grants", of[admin.RoleGrant]()), do: listGrants},
	{Method: http.MethodPut, Path: "/admin/roles/grants", Needs: access.RolesManage, Summary: "Grant a role to a principal",
		in: admin.RoleGrant{}, out: of[admin.RoleGrant](), do: withBody(grantRole)},
	{Method: http.MethodDelete, Path: "/admin/roles/grants", Needs: access.RolesManage, Summary: "Revoke a role from a principal",
		query: []string{"principal", "role"}, statuses: []int{http.StatusNoContent}, do: revokeRole},
}

// role is the JSON form of a role.
type role struct {
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"`
	caps
	BuiltIn bool `json:"built_in"`
}

// caps is the JSON form of a role's caps: the highest values that its holders may set when submitting a job. A missing field means no cap.
type caps struct {
	MaxPriority *int   `json:"max_priority,omitempty"`
	MaxDelay    *Delay `json:"max_delay,omitempty"`
	MaxAttempts *int   `json:"max_attempts,omitempty"`
}

// roleFrom converts a row of the role table to its JSON form.
func roleFrom(one admin.Role) role {
	shown := role{Name: one.Name, Permissions: one.Permissions, Scope: one.Scope, caps: caps{MaxPriority: one.MaxPriority, MaxAttempts: one.MaxAttempts}}
	if one.MaxDelayMS != nil {
		shown.MaxDelay = new(Delay(time.Duration(*one.MaxDelayMS) * time.Millisecond))
	}
	return shown
}

func listRoles(c *call) (any, error) {
	all := []role{}
	for _, one := range access.BuiltIn {
		all = append(all, role{Name: one.Name, Permissions: store.Texts(one.Permissions), Scope: string(one.Scope), BuiltIn: true})
	}
	custom, err := admin.Roles(c.ctx(), inside.Of(c.r).Store)
	for _, one := range custom {
		all = append(all, roleFrom(one))
	}
	return map[string]any{"roles": all}, err
}

// roleBody is the body of PUT /admin/roles/:name.
type roleBody struct {
	Permissions []string `json:"permissions"`
	Scope       string   `json:"scope"` // own or all
	caps
}

var validRole = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)

func putRole(c *call, body roleBody) (any, error) {
	role := admin.Role{Name: c.Param("name"), Permissions: body.Permissions, Scope: body.Scope, Caps: admin.Caps{MaxPriority: body.MaxPriority, MaxAttempts: body.MaxAttempts}}
	if body.MaxDelay != nil {
		role.MaxDelayMS = new(time.Duration(*body.MaxDelay).Milliseconds())
	}
	if err := checkRoleName(role.Name); err != nil {
		return nil, err
	}
	if err := validateRole(role); err != nil {
		return nil, invalid("role %s: %s", role.Name, err)
	}
	err := admin.PutRole(c.ctx(), inside.Of(c.r).Store, role, c.caller.Name)
	return roleFrom(role), c.rightsChanged(err)
}

// rightsChanged drops the cached permissions if a change to roles or grants succeeded, and returns err.
func (c *call) rightsChanged(err error) error {
	if err == nil {
		c.door.rights.forget()
	}
	return err
}

// checkRoleName rejects names that are invalid for a custom role.
func checkRoleName(name string) error {
	if !validRole.MatchString(name) || name == "grants" {
		return invalid("invalid role name %q: want %s, and not grants", name, validRole)
	}
	if _, builtIn := access.BuiltInRole(name); builtIn {
		return &problem{Status: http.StatusConflict, Code: "role_built_in", Message: "built-in roles cannot be changed",
			Detail: "create a role with another name"}
	}
	return nil
}

func validateRole(role admin.Role) error {
	if role.Scope != string(access.Own) && role.Scope != string(access.All) {
		return fmt.Errorf("scope %q: want own or all", role.Scope)
	}
	if len(role.Permissions) == 0 {
		return errors.New("permissions: want at least one")
	}
	switch {
	case role.Caps != (admin.Caps{}) && !slices.Contains(role.Permissions, string(access.JobsSubmit)):
		return fmt.Errorf("caps limit submissions: want the permission %s too", access.JobsSubmit)
	case role.MaxPriority != nil && (*role.MaxPriority < job.MinPriority || *role.MaxPriority > job.MaxPriority):
		return fmt.Errorf("max_priority %d: want %d to %d", *role.MaxPriority, job.MinPriority, job.MaxPriority)
	case role.MaxDelayMS != nil && *role.MaxDelayMS < 0:
		return errors.New("max_delay: want 0 or more")
	case role.MaxAttempts != nil && (*role.MaxAttempts < 1 || *role.MaxAttempts > math.MaxInt32):
		return fmt.Errorf("max_attempts %d: want 1 to %d", *role.MaxAttempts, math.MaxInt32)
	}
	for i, what := range role.Permissions {
		switch {
		case !slices.Contains(access.Permissions, access.Permission(what)):
			return fmt.Errorf("permission %q: want one of %v", what, access.Permissions)
		case slices.Contains(role.Permissions[:i], what):
			return fmt.Errorf("permission %q is listed twice", what)
		case role.Scope == string(access.Own) && !strings.HasPrefix(what, "jobs:"):
			return fmt.Errorf("permission %q needs scope all: scope own allows only jobs:* permissions", what)
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
			f.Principal = value
		case "role":
			f.Role = value
		case "limit":
			f.Limit, err = text.ParseLimit(value)
		case "cursor":
			if value, err = text.DecodeCursor("grants", value); err == nil {
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
		return text.EncodeCursor("grants", last.Principal+"\n"+last.Role)
	}), err
}

func grantRole(c *call, g admin.RoleGrant) (any, error) {
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

// revokeRole reads the principal and the role from the query. Revoking a role that is not granted is not an error.
func revokeRole(c *call) (any, error) {
	principal, name := c.QueryParam("principal"), c.QueryParam("role")
	if principal == "" || name == "" {
		return nil, invalid("want the parameters principal and role")
	}
	return nil, c.rightsChanged(admin.RevokeRole(c.ctx(), inside.Of(c.r).Store, admin.RoleGrant{Principal: principal, Role: name}, c.caller.Name))
}

// cap enforces the caps of a principal's roles on s. It returns an error if s sets a value above a cap. If s sets no priority, it gets the
// default priority, or the cap if that is lower.
func (s *Submission) cap(caps access.Caps) error {
	if limit := caps.Priority; limit != nil {
		if s.Priority == nil && *limit < job.DefaultPriority {
			s.Priority = limit
		}
		priorities := []*int{s.Priority}
		for _, step := range s.Chain {
			priorities = append(priorities, step.Priority)
		}
		for _, asked := range priorities {
			if asked != nil && *asked > *limit {
				return aboveCap("priority", *asked, *limit)
			}
		}
	}
	if limit := caps.Delay; limit != nil && time.Duration(s.Delay) > *limit {
		return aboveCap("delay", time.Duration(s.Delay), *limit)
	}
	if limit := caps.Attempts; limit != nil && s.MaxAttempts != nil && *s.MaxAttempts > *limit {
		return aboveCap("max_attempts", *s.MaxAttempts, *limit)
	}
	return nil
}

// aboveCap returns the error for a submission that exceeds a cap. The rejection is audited.
func aboveCap[T any](what string, asked, limit T) error {
	return &problem{Status: http.StatusForbidden, Code: "above_cap", Message: fmt.Sprintf("%s %v is above your cap of %v", what, asked, limit),
		Detail: fmt.Sprintf("submit with %s %v or less, or ask for a role with a higher cap", what, limit), Refused: true}
}
