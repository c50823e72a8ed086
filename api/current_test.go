package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestCurrentRunRouteAndFilter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"submitter"}, "ben": {"submitter"}})}, func(*runner.Runner) {})
	run := func() string {
		t.Helper()
		made := h.send("POST", "/jobs", `{"kind":"echo","subject":"s/1"}`, "X-Who", "ana")
		is.Equal(made.status, http.StatusAccepted)
		id := made.body["id"].(string)
		pgtest.Wait(t, "it has ended", func() bool {
			return h.send("GET", "/jobs/"+id, "", "X-Who", "ana").body["state"] == string(job.Succeeded)
		})
		return id
	}
	const route = "/jobs/current?kind=echo&subject=s%2F1"
	is.Equal(h.send("GET", route, "", "X-Who", "ana").status, http.StatusNotFound)
	run()
	latest := run()
	found := h.send("GET", route, "", "X-Who", "ana")
	is.Equal(found.status, http.StatusOK)
	is.Equal([]any{found.body["id"], found.body["is_current"]}, []any{latest, true})
	for path, want := range map[string]int{
		"/jobs/current": 400, "/jobs/current?kind=echo": 400, "/jobs/current?subject=s": 400, "/jobs/current?kind=echo&subject=s&lane=x": 400,
		"/jobs?current=perhaps": 400, "/jobs/current?kind=echo&subject=other": 404,
	} {
		is.Equal(h.send("GET", path, "", "X-Who", "root").status, want)
	}
	is.Equal(h.send("GET", route, "", "X-Who", "root").status, http.StatusOK)
	is.Equal(h.send("GET", route, "", "X-Who", "ben").status, http.StatusNotFound) // the job belongs to another user
	for who, want := range map[string]int{"ana": 1, "root": 1, "ben": 0} {
		list := h.send("GET", "/jobs?current=true&kind=echo&subject=s%2F1", "", "X-Who", who)
		is.Equal(list.status, http.StatusOK)
		jobs := list.body["jobs"].([]any)
		is.Equal(len(jobs), want)
		if want == 1 {
			is.Equal(jobs[0].(map[string]any)["id"], latest)
		}
	}
	is.Equal(len(h.send("GET", "/jobs?kind=echo&subject=s%2F1", "", "X-Who", "root").body["jobs"].([]any)), 2)
}
