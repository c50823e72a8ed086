package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestSubmitterDashboardEntryPage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	options := api.Options{Authenticate: authenticateAs("ana", "submitter")}
	grouped := echo.New()
	api.Mount(grouped.Group("/trapeze"), r, options)
	for prefix, door := range map[string]http.Handler{
		"": api.Handler(r, options), "/trapeze": grouped, "/ops/jobs": http.StripPrefix("/ops/jobs", api.Handler(r, options)),
	} {
		web := httptest.NewServer(door)
		defer web.Close()
		for _, path := range []string{"/ui", "/ui/"} {
			answer, err := web.Client().Get(web.URL + prefix + path)
			is.NoErr(err)
			is.NoErr(answer.Body.Close())
			is.Equal(answer.StatusCode, http.StatusOK)
			is.Equal(answer.Request.URL.Path, prefix+"/ui/jobs")
			is.True(strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html"))
		}
		for _, path := range []string{"/ui//jobs", "/ui/x/%2e%2e/jobs"} {
			answer, err := web.Client().Get(web.URL + prefix + path)
			is.NoErr(err)
			is.NoErr(answer.Body.Close())
			is.Equal(answer.StatusCode, http.StatusNotFound)
			is.True(strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html")) // a dashboard page, not an API response
		}
	}
}

func TestLoginFormWithoutSessions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	with := guarded(t, api.Options{}).send("GET", "/ui/login", "")
	is.Equal(with.status, http.StatusOK)
	is.True(strings.Contains(with.text, `name="token"`))
	without := newIdleHost(t, api.Options{}).send("GET", "/ui/login", "")
	is.Equal(without.status, http.StatusNotFound)
	is.True(!strings.Contains(without.text, `name="token"`))
	is.True(strings.Contains(without.text, "This service has no browser sessions"))
}
