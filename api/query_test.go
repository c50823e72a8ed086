package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// If a misspelled parameter were ignored, the caller could get a different response than expected without noticing.
func TestRoutesUnknownQueryParameters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	e := echo.New()
	api.MountDoors(e.Group("/x"), r, api.Options{InsecureAllowAll: true, ChangesPerSecond: -1})
	for _, route := range api.Routes() {
		want := http.StatusBadRequest
		if route.Needs == access.Nothing {
			want = api.LetThrough // a probe may send any parameters
		}
		is.Equal(knock(e, route.Method, "/x"+route.Path+"?limmit=1", ""), want)
		for _, name := range api.Queries(route) {
			is.Equal(knock(e, route.Method, "/x"+route.Path+"?"+name+"=1", ""), api.LetThrough)
		}
	}
	h := newIdleHost(t, api.Options{})
	id := h.submit(`{"kind":"echo"}`)
	for _, path := range []string{"/jobs/" + id, "/jobs/" + id + "/events", "/jobs/" + id + "/blockers", "/pipelines/" + id, "/jobs", "/events", "/admin/roles"} {
		refused := h.send("GET", path+"?colour=red", "")
		is.Equal(refused.status, http.StatusBadRequest)
		is.True(strings.Contains(refused.body["message"].(string), "colour"))
		is.Equal(h.send("GET", path, "").status, http.StatusOK)
	}
}

// The standard library drops the parts of a query that it cannot parse, so ?dry_run=true; would make a real change.
func TestInvalidQueryOnEveryRoute(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	e := echo.New()
	api.MountDoors(e.Group("/x"), r, api.Options{InsecureAllowAll: true, ChangesPerSecond: -1})
	routes := append(api.Routes(), api.Route{Method: "GET", Path: "/metrics"}, api.Route{Method: "GET", Path: "/ui"})
	for _, page := range ui.Routes() {
		routes = append(routes, api.Route{Method: "GET", Path: "/ui" + strings.ReplaceAll(page.Path, "{$}", "")})
	}
	is.True(len(routes) > 60)
	for _, route := range routes {
		path := strings.NewReplacer(":id", "1", "{id}", "1", ":name", "default", "{name}", "default").Replace(route.Path)
		for _, query := range []string{"dry_run=true;", "limit=1;kind=echo", "kind=%", "dry_run=true&%zz=1"} {
			answer := httptest.NewRecorder()
			e.ServeHTTP(answer, httptest.NewRequest(route.Method, "/x"+path+"?"+query, nil))
			if answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), "invalid_query") {
				t.Errorf("%s %s?%s: %d %s", route.Method, path, query, answer.Code, answer.Body)
			}
		}
	}
}

func TestDeletionWithInvalidQuery(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	is.Equal(h.send("PUT", "/admin/workers/lanes/narrow", `{"slots":2}`).status, http.StatusOK)
	is.Equal(h.send("DELETE", "/admin/workers/lanes/narrow?dry_run=true;", "").status, http.StatusBadRequest)
	is.Equal(h.send("PUT", "/admin/workers/lanes/narrow", `{"slots":2}`).body["created"], false) // the lane still exists
	is.Equal(h.send("DELETE", "/admin/workers/lanes/narrow?dry_run=true", "").status, http.StatusOK)
}

func TestInvalidQueryValueMessages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	is.Equal(h.send("GET", "/jobs?current=x", "").body["message"], `filter current: "x": want true or false`)
	for _, route := range api.Routes() {
		path := strings.NewReplacer(":id", "1", ":name", "default").Replace(route.Path)
		for _, name := range api.Queries(route) {
			if route.Method != http.MethodGet || strings.HasSuffix(route.Path, "/stream") {
				continue
			}
			if text := h.send(route.Method, path+"?"+name+"=x", "").text; strings.Contains(text, "strconv") {
				t.Errorf("%s %s?%s=x: %s", route.Method, path, name, text)
			}
		}
	}
}
