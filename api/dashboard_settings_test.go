package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
)

func TestClosedQueueOnDashboardPages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	shows := func(path, text string) bool {
		response, page := p.get(p.url+path, "X-Fresh", "1")
		is.Equal(response.StatusCode, http.StatusOK)
		return strings.Contains(visibleText(page), text)
	}
	paths := []string{"", "pipelines", "jobs", "jobs/new", "schedules", "lanes", "limits", "pods", "audit", "settings", "settings/doctor", "settings/roles"}
	for _, path := range paths {
		is.True(!shows(path, "no job starts."))
	}
	_, err := p.Admin("ana").Pause(t.Context())
	is.NoErr(err)
	for _, path := range paths {
		is.True(shows(path, "The queue is paused: no job starts."))
	}
	_, err = p.Admin("ana").Freeze(t.Context(), 0)
	is.NoErr(err)
	is.True(shows("jobs", "The queue is frozen for maintenance: no job starts."))
}

func TestDashboardSettingsByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	p.exec(`insert into trapeze.roles (name, permissions, scope) values ('only_workers', '{workers:view}', 'all'), ('only_roles', '{roles:manage}', 'all')`)
	p.exec(`insert into trapeze.roles (name, permissions, scope, max_priority, max_delay_ms, max_attempts) values ('capped', '{jobs:submit}', 'own', 10, 60000, 3)`)
	p.exec(`insert into trapeze.grants (principal, role) values ($1, 'viewer')`, hostile[0])
	p.exec(`insert into trapeze.kind_retention (kind, state, keep_s) values ($1, 'failed', 0)`, hostile[1])
	read := func(path, role string) (int, string, []string) {
		response, page := p.get(p.url+path, "X-Name", "ana", "X-Role", role)
		mustBeHarmless(t, path, page)
		return response.StatusCode, visibleText(page), offered(page)
	}
	status, text, offers := read("settings", access.PlatformAdmin)
	is.Equal(status, http.StatusOK)
	for _, want := range []string{"TRAPEZE_RETENTION_FAILED", "7d 0h", "TRAPEZE_MAX_ATTEMPTS", "TRAPEZE_FOUR_EYES", "any approver", "Download all jobs", hostile[1], "forever", "Roles and grants"} {
		is.True(strings.Contains(text, want))
	}
	is.Equal(len(offers), 2) // one to set a retention period, and one to remove it
	status, text, offers = read("settings", "only_workers")
	is.Equal(status, http.StatusOK)
	is.True(!strings.Contains(text, "Download all jobs")) // an export needs jobs:read
	is.True(!strings.Contains(text, "Roles and grants"))
	is.Equal(offers, nil)
	status, text, _ = read("settings/doctor", "viewer")
	is.Equal(status, http.StatusOK)
	is.True(strings.Contains(text, "autovacuum"))

	status, text, offers = read("settings/roles", "only_roles")
	is.Equal(status, http.StatusOK)
	is.True(strings.Contains(text, "platform_admin") && strings.Contains(text, "only_workers") && strings.Contains(text, hostile[0]))
	is.True(strings.Contains(text, "priority at most 10, delay at most 1m0s, attempts at most 3"))
	is.True(strings.Contains(text, "Delay at most")) // replacing a role with a form that lacks its caps would silently remove them
	is.True(strings.Contains(strings.Join(offers, "\n"), "DELETE admin/roles/grants?principal=%3Cscript%3E"))
	for path, role := range map[string]string{"settings/roles": "operator", "settings": "only_roles", "settings/doctor": "submitter"} {
		status, _, _ = read(path, role)
		is.Equal(status, http.StatusForbidden)
	}
}
