package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// unguarded lists the routes that require no permission, so that anyone can use them.
var unguarded = map[string]bool{
	"GET /healthz": true, "GET /readyz": true, "GET /openapi.json": true, "POST /ui/login": true, "POST /ui/logout": true,
}

func TestRoutePermissionsAndSummaries(t *testing.T) {
	seen := map[string]bool{}
	for _, route := range api.Routes() {
		t.Run(route.Method+" "+route.Path, func(t *testing.T) {
			is := is.New(t)
			known := route.Needs == access.Nothing
			for _, one := range access.Permissions {
				known = known || route.Needs == one
			}
			is.True(known)                                                                  // the permission exists
			is.Equal(route.Needs == access.Nothing, unguarded[route.Method+" "+route.Path]) // no other route is open
			is.True(len(route.Summary) > 5 && !strings.HasSuffix(route.Summary, "."))
			is.True(!seen[route.Method+" "+route.Path]) // no duplicate routes
			seen[route.Method+" "+route.Path] = true
		})
	}
}

// everyRole creates one role for each single permission, one without permissions, and one with all permissions for own jobs. It returns
// them together with the built-in roles, and a principal for each role.
func everyRole(t *testing.T, r *runner.Runner) (roles []access.Role, principals map[string][]string) {
	t.Helper()
	roles = append([]access.Role{{Name: "nobody", Permissions: []access.Permission{}, Scope: access.All}, {Name: "own_everything", Permissions: access.Permissions, Scope: access.Own}}, access.BuiltIn...)
	for _, what := range access.Permissions {
		roles = append(roles, access.Role{Name: "only_" + strings.ReplaceAll(string(what), ":", "_"), Permissions: []access.Permission{what}, Scope: access.All})
	}
	principals = map[string][]string{}
	for _, role := range roles {
		principals["user of "+role.Name] = []string{role.Name}
		if _, builtIn := access.BuiltInRole(role.Name); !builtIn {
			_, err := inside.Of(r).Store.Pool().Exec(t.Context(), `insert into `+inside.Of(r).Store.Schema()+`.roles (name, permissions, scope) values ($1, $2, $3)`,
				role.Name, role.Permissions, role.Scope)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return roles, principals
}

// TestRoutePermissionsByRole calls each route as each role, for the caller's own job and for another user's job. The
// expected responses are derived from the route and role tables, independently of the server's code.
func TestRoutePermissionsByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	runner.HandleRaw(r, "echo", never)
	roles, principals := everyRole(t, r)
	e := echo.New()
	api.MountDoors(e.Group("/x"), r, api.Options{Authenticate: byName(principals), ChangesPerSecond: -1})

	others, err := r.Enqueue(t.Context(), runner.Raw{Name: "echo"}, runner.Submitter("somebody else"))
	is.NoErr(err)
	for _, role := range roles {
		user := "user of " + role.Name
		own, err := r.Enqueue(t.Context(), runner.Raw{Name: "echo"}, runner.Submitter(user))
		is.NoErr(err)
		for _, route := range api.Routes() {
			for _, job := range []int64{own.ID, others.ID} {
				path := strings.NewReplacer(":id", strconv.FormatInt(job, 10), ":name", "default").Replace(route.Path)
				got := knock(e, route.Method, "/x"+path, user)
				if want := expected(route, role, job == own.ID); got != want {
					t.Errorf("%s %s as %s, on an own job: %t: %d, want %d", route.Method, route.Path, role.Name, job == own.ID, got, want)
				}
			}
		}
	}
	for _, route := range api.Routes() {
		want := http.StatusUnauthorized
		if route.Needs == access.Nothing {
			want = api.LetThrough
		}
		is.Equal(knock(e, route.Method, "/x"+route.Path, ""), want) // without credentials
	}
}

// expected returns the expected status of a route for a caller with a single role.
func expected(route api.Route, role access.Role, own bool) int {
	has := func(what access.Permission) bool {
		return strings.Contains(fmt.Sprint(role.Permissions, " "), string(what))
	}
	toJob := strings.HasPrefix(route.Path, "/admin/workers/jobs")
	right := access.JobsRead
	for ending, other := range map[string]access.Permission{"/cancel": access.JobsCancel, "/force-cancel": access.JobsCancel, "/retry": access.JobsRetry} {
		if strings.HasSuffix(route.Path, ending) {
			right = other
		}
	}
	switch {
	case route.Needs == access.Nothing:
		return api.LetThrough
	case !has(route.Needs), toJob && !has(right):
		return http.StatusForbidden
	case role.Scope == access.All || api.Scoped(route):
		return api.LetThrough
	case !strings.Contains(route.Path, "jobs/:id") && !strings.Contains(route.Path, "pipelines/:id"):
		return http.StatusForbidden
	case own:
		return api.LetThrough
	}
	return http.StatusNotFound
}

func knock(h http.Handler, method, path, who string) int {
	request := httptest.NewRequest(method, path, nil)
	request.Header.Set("X-Who", who)
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, request)
	return answer.Code
}

func TestOpenAPIRoutesComplete(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	a := h.send("GET", "/openapi.json", "")
	is.Equal(a.status, http.StatusOK)
	var document struct {
		OpenAPI    string
		Paths      map[string]map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	is.NoErr(json.Unmarshal([]byte(a.text), &document))
	is.Equal(document.OpenAPI, "3.1.0")
	described, ids := map[string]bool{}, map[any]bool{}
	for path, operations := range document.Paths {
		for method, o := range operations {
			if path == "/metrics" {
				continue
			}
			described[strings.ToUpper(method)+" "+path] = true
			is.True(o["summary"] != "" && o["operationId"] != "")
			is.True(!ids[o["operationId"]]) // operation IDs are unique
			ids[o["operationId"]] = true
			responses := o["responses"].(map[string]any)
			is.True(len(responses) >= 2 && responses["default"] != nil) // a success response and the error response
			var inPath []any
			parameters, _ := o["parameters"].([]any)
			for _, p := range parameters {
				if p := p.(map[string]any); p["in"] == "path" {
					is.Equal(p["required"], true)
					inPath = append(inPath, p["name"])
				}
			}
			is.Equal(len(inPath), strings.Count(path, "{")) // every path parameter is described
		}
	}
	for _, route := range api.Routes() {
		path := route.Path
		for _, name := range []string{"id", "name", "pod_id", "pod", "kind", "state"} {
			path = strings.ReplaceAll(path, ":"+name, "{"+name+"}")
		}
		is.True(described[route.Method+" "+path]) // the document describes every route
		delete(described, route.Method+" "+path)
	}
	is.Equal(len(described), 0) // the document describes no other route
	for _, reference := range strings.Split(a.text, `"$ref":"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(reference, `"`)
		is.True(document.Components.Schemas[name] != nil) // every referenced schema exists
	}
	problem := document.Components.Schemas["Problem"]["properties"].(map[string]any)
	wrong := h.send("GET", "/jobs/abc", "").body
	is.Equal(len(wrong), len(problem))
	for name := range wrong {
		is.True(problem[name] != nil) // matches the JSON of errors
	}
	members := document.Components.Schemas["Job"]["properties"].(map[string]any)
	for name := range h.send("GET", "/jobs/"+h.submit(`{"kind":"echo"}`), "").body {
		is.True(members[name] != nil) // matches the JSON of jobs
	}
}

// never is the handler of jobs that must not run.
func never(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { panic("it runs") }

func TestOpenAPIRouteDifferences(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var document struct {
		Paths map[string]map[string]struct {
			Parameters  []struct{ Name, Description string }
			RequestBody struct{ Required bool }
		}
	}
	is.NoErr(json.Unmarshal([]byte(newIdleHost(t, api.Options{}).send("GET", "/openapi.json", "").text), &document))
	meaning := func(path, name string) string {
		for _, p := range document.Paths[path]["get"].Parameters {
			if p.Name == name {
				return p.Description
			}
		}
		return ""
	}
	is.Equal(meaning("/jobs", "limit"), "1 to 1000, default 50")
	for _, path := range []string{"/events", "/jobs/{id}/events", "/pipelines/{id}/events"} {
		is.Equal(meaning(path, "limit"), "1 to 1000, default 1000")
	}
	is.True(strings.HasPrefix(meaning("/jobs", "since"), "created since"))
	for _, path := range []string{"/failures", "/failures/{id}"} {
		is.True(strings.HasPrefix(meaning(path, "since"), "failed since"))
	}
	is.True(document.Paths["/jobs"]["post"].RequestBody.Required)
	for _, path := range []string{"/jobs/{id}/retry", "/pipelines/{id}/retry"} {
		is.True(!document.Paths[path]["post"].RequestBody.Required)
	}
}
