//go:build long

package api_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// changes are requests that change something. ID stands for a cancelled job, and NAME for a name that differs for each role.
var changes = []struct{ method, path, body string }{
	{"POST", "/jobs", `{"kind":"echo","subject":"NAME","unique_key":"NAME","chain":[{"kind":"echo"}]}`},
	{"POST", "/jobs/ID/retry", ""},
	{"PATCH", "/admin/workers/jobs/ID/priority", `{"priority":5}`},
	{"POST", "/jobs/ID/cancel", ""},
	{"POST", "/admin/workers/jobs/cancel", `{"filter":{"kind":"echo","state":["pending"]}}`},
	{"POST", "/admin/workers/jobs/retry", `{"filter":{"kind":"echo"}}`},
	{"POST", "/admin/workers/jobs/cancel", `{"filter":{"kind":"echo","state":["pending"]}}`},
	{"PUT", "/admin/workers/lanes/NAME", `{"slots":3}`},
	{"PATCH", "/admin/workers/lanes/NAME", `{"slots":4}`},
	{"POST", "/admin/workers/lanes/NAME/drain", ""},
	{"POST", "/admin/workers/lanes/NAME/undrain", ""},
	{"DELETE", "/admin/workers/lanes/NAME", ""},
	{"POST", "/admin/workers/freeze", ""},
	{"POST", "/admin/workers/unfreeze", ""},
	{"POST", "/admin/workers/pause", ""},
	{"POST", "/admin/workers/resume", ""},
	{"PUT", "/admin/workers/schedules/NAME", `{"expression":"@yearly","kind":"echo"}`},
	{"PATCH", "/admin/workers/schedules/NAME", `{"expression":"@daily"}`},
	{"POST", "/admin/workers/schedules/NAME/pause", ""},
	{"POST", "/admin/workers/schedules/NAME/resume", ""},
	{"POST", "/admin/workers/schedules/NAME/trigger", ""},
	{"DELETE", "/admin/workers/schedules/NAME", ""},
	{"PUT", "/admin/workers/retention/echo/succeeded", `{"keep_s":3600}`},
	{"DELETE", "/admin/workers/retention/echo/succeeded", ""},
	{"PUT", "/admin/workers/limits", `{"scope":"kind","name":"echo","key":"*","slots":2}`},
	{"DELETE", "/admin/workers/limits?scope=kind&name=echo&key=*", ""},
	{"PUT", "/admin/roles/NAME", `{"permissions":["jobs:read"],"scope":"all"}`},
	{"PUT", "/admin/roles/grants", `{"principal":"ana","role":"NAME"}`},
	{"DELETE", "/admin/roles/grants?principal=ana&role=NAME", ""},
	{"DELETE", "/admin/roles/NAME", ""},
	{"DELETE", "/jobs/ID", ""},
	{"POST", "/admin/subjects/erase", `{"subject":"NAME","kind":"echo"}`},
}

// Every page of the dashboard, every route that reads and many that change something work as each role of docs/grants.md, or name the missing
// grant.
func TestPagesRoutesPerDatabaseRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	guide, err := os.ReadFile("../docs/grants.md")
	is.NoErr(err)
	var replaced []string
	// role creates a role with the statements of a section. A user of url executes them.
	role := func(url, section, name string) string {
		t.Helper()
		_, text, found := strings.Cut(string(guide), "\n## "+section+"\n")
		is.True(found)
		_, sql, _ := strings.Cut(text, "```sql\n")
		sql, _, _ = strings.Cut(sql, "\n```")
		made, as := pgtest.Role(t, url)
		replaced = append(replaced, name, made)
		_, err = pgtest.Connect(t, url).Exec(t.Context(), strings.NewReplacer(replaced...).Replace(sql))
		is.NoErr(err)
		return as
	}
	super := pgtest.EmptyURL(t)
	owner := role(super, "The owner", "trapeze_owner")
	pgtest.Migrate(t, owner)
	h := newHostOn(t, pgtest.Connect(t, owner), api.Options{}, func(r *runner.Runner) {
		runner.HandleRaw(r, "fails", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, errors.New("no") })
	})
	id := h.submit(`{"kind":"echo","args":{"a":1},"subject":"s","chain":[{"kind":"fan"}]}`)
	h.until(id, job.Succeeded)
	h.until(h.submit(`{"kind":"fails"}`), job.Failed)
	group := h.send("GET", "/failures", "").body["failures"].([]any)[0].(map[string]any)["id"].(string)
	is.Equal(h.send("PUT", "/admin/workers/schedules/nightly", `{"expression":"@yearly","kind":"echo"}`).status, http.StatusOK)
	h.stop() // so that jobs wait
	pool := pgtest.Connect(t, owner)
	pgtest.Wait(t, "the pod has left", func() bool {
		var open int
		return pool.QueryRow(t.Context(), `select count(*) from trapeze.pods where closed_at is null`).Scan(&open) == nil && open == 0
	})

	for _, one := range []struct {
		section, name        string
		reads, writes, erase bool
	}{
		{"", "trapeze_owner", true, true, true},
		{"A role that runs jobs", "trapeze_app", true, true, false},
		{"A role that erases", "trapeze_eraser", true, true, true},
		{"A role that reads only", "trapeze_read", true, false, false},
		{"A role that submits only", "trapeze_submit", false, false, false},
		{"A producer in SQL", "trapeze_producer", false, false, false},
	} {
		as := owner
		if one.section != "" {
			as = role(super, one.section, one.name)
		}
		r, err := runner.New(pgtest.Connect(t, as), runner.Options{})
		is.NoErr(err)
		t.Cleanup(r.Close)
		runner.HandleRaw(r, "echo", never)
		e := echo.New()
		api.Mount(e.Group("/trapeze"), r, api.Options{InsecureAllowAll: true, ChangesPerSecond: -1})
		web := httptest.NewServer(e)
		t.Cleanup(web.Close) // after the bodies of the responses
		v := visit{t, web}
		cancelled := h.submit(`{"kind":"echo"}`)
		is.Equal(h.send("POST", "/jobs/"+cancelled+"/cancel", "").status, http.StatusOK)
		try := func(method, path, body string, works bool) {
			t.Helper()
			path = strings.NewReplacer("{$}", "", "{id}", id, ":id", id, "ID", cancelled, "{name}", "nightly", ":name", "nightly", "{group}", group,
				"NAME", one.name).Replace(path)
			response := v.open(method, "/trapeze"+path, strings.ReplaceAll(body, "NAME", one.name), "")
			read := make([]byte, 64<<10)
			n, _ := io.ReadAtLeast(response.Body, read, 1) // a stream does not end
			status, text := response.StatusCode, string(read[:n])
			named := strings.Contains(text, "permission denied for ")
			if works && (status >= 400 || named) || !works && status >= 500 && !named {
				t.Errorf("%s %s as %s: %d %.300s", method, path, one.name, status, text)
			}
		}
		for _, page := range ui.Routes() {
			try("GET", "/ui"+page.Path, "", one.reads)
		}
		for _, route := range api.Routes() {
			switch {
			case route.Method == "GET" && route.Path == "/readyz": // the pod does not run
			case route.Method == "GET" && route.Path == "/jobs/current":
				try("GET", route.Path+"?kind=echo&subject=s", "", one.reads)
			case route.Method == "GET" && strings.HasSuffix(route.Path, "/preview"):
				try("GET", route.Path+"?expression=@daily", "", one.reads)
			case route.Method == "GET" && strings.HasPrefix(route.Path, "/failures/"):
				try("GET", "/failures/"+group, "", one.reads)
			case route.Method == "GET":
				try("GET", route.Path, "", one.reads)
			}
		}
		try("GET", "/metrics", "", true)
		for _, change := range changes {
			try(change.method, change.path, change.body, one.writes && (one.erase || !strings.HasSuffix(change.path, "/erase")))
		}
	}
}
