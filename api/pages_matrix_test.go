package api_test

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// TestPagePermissionsByRole requests each dashboard page as each role, for the caller's own job and for another user's job.
func TestPagePermissionsByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	runner.HandleRaw(r, "echo", never)
	expression, kind := "@yearly", "echo"
	_, err = r.Admin("ana").SetSchedule(t.Context(), "nightly", job.ScheduleChange{Expression: &expression, Kind: &kind})
	is.NoErr(err)
	roles, principals := everyRole(t, r)
	e := echo.New()
	api.Mount(e.Group("/x"), r, api.Options{Authenticate: byName(principals)})
	others, err := r.Enqueue(t.Context(), runner.Raw{Name: "echo"}, runner.Submitter("somebody else"))
	is.NoErr(err)
	is.True(len(ui.Routes()) >= 10)
	for _, role := range roles {
		user := "user of " + role.Name
		own, err := r.Enqueue(t.Context(), runner.Raw{Name: "echo"}, runner.Submitter(user))
		is.NoErr(err)
		for _, page := range ui.Routes() {
			for _, id := range []int64{own.ID, others.ID} {
				path := strings.NewReplacer("{$}", "", "{id}", strconv.FormatInt(id, 10), "{name}", "nightly", "{group}", "0123456789abcdef").Replace(page.Path)
				got := knock(e, http.MethodGet, "/x/ui"+path, user)
				if want := expectedPage(page, role, id == own.ID); got != want {
					t.Errorf("%s as %s, on an own job: %t: %d, want %d", path, role.Name, id == own.ID, got, want)
				}
			}
		}
	}
	for _, page := range ui.Routes() {
		is.True(slices.Contains(access.Permissions, page.Needs)) // every page needs a valid permission
		is.Equal(knock(e, http.MethodGet, "/x/ui"+strings.NewReplacer("{$}", "", "{id}", "1", "{name}", "nightly", "{group}", "0123456789abcdef").Replace(page.Path), ""), http.StatusUnauthorized)
	}
}

// expectedPage returns the expected status of a page for a caller with a single role.
func expectedPage(page ui.Route, role access.Role, own bool) int {
	sees := func(p ui.Route) bool {
		return slices.Contains(role.Permissions, p.Needs) && (role.Scope == access.All || p.Own)
	}
	switch {
	case !sees(page) && page.Path == "/{$}" && slices.ContainsFunc(ui.Routes(), sees):
		return http.StatusSeeOther // redirected to the first page that the caller may see
	case !sees(page):
		return http.StatusForbidden
	case role.Scope == access.Own && strings.Contains(page.Path, "{id}") && !own:
		return http.StatusNotFound
	}
	return http.StatusOK
}
