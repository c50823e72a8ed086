//go:build long

package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestRolesChangedWithSQL(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"ana": {}})})
	is.Equal(h.send("GET", "/jobs", "", "X-Who", "ana").status, http.StatusForbidden)
	_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `insert into `+inside.Of(h.Runner).Store.Schema()+`.grants (principal, role) values ('ana', 'viewer')`)
	is.NoErr(err)
	pgtest.Wait(t, "the grant is known", func() bool { return h.send("GET", "/jobs", "", "X-Who", "ana").status == http.StatusOK })
}
