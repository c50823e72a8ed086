package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// What is misspelt would be passed over, and the answer taken for what was asked.
func TestEveryRouteRefusesParametersThatItIsNotDescribedWith(t *testing.T) {
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
			want = api.LetThrough // a prober may add what it likes
		}
		is.Equal(knock(e, route.Method, "/x"+route.Path+"?limmit=1", ""), want)
		for _, name := range api.Queries(route) {
			is.Equal(knock(e, route.Method, "/x"+route.Path+"?"+name+"=1", ""), api.LetThrough)
		}
	}
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"echo"}`)
	for _, path := range []string{"/jobs/" + id, "/jobs/" + id + "/events", "/jobs/" + id + "/obstacles", "/pipelines/" + id, "/jobs", "/events", "/admin/roles"} {
		refused := h.send("GET", path+"?colour=red", "")
		is.Equal(refused.status, http.StatusBadRequest)
		is.True(strings.Contains(refused.body["message"].(string), "colour"))
		is.Equal(h.send("GET", path, "").status, http.StatusOK)
	}
}
