//go:build long

package api_test

import (
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// After a failover, a pod may stay connected to the old primary, which is now read-only: reads still succeed, but heartbeats fail.
func TestCutOffPodReads(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	pool := pgtest.Connect(t, server.URL())
	h := newHostOn(t, pool, api.Options{})
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	all, one := h.watch("/events/stream"), h.watch("/jobs/"+id+"/stream")
	all.must(t)
	one.until(t, "job.claimed")

	readOnly := func(value string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), server.URL())
		is.NoErr(err)
		defer conn.Close(t.Context())
		// Sessions on this server are read-only, but they can still run ALTER SYSTEM.
		_, err = conn.Exec(t.Context(), "alter system set default_transaction_read_only = "+value)
		is.NoErr(err)
		_, err = conn.Exec(t.Context(), "select pg_reload_conf()")
		is.NoErr(err)
	}
	readOnly("on")
	for _, open := range []*stream{one, all} {
		open.rest(t)
		is.Equal(open.comments[len(open.comments)-1], feed.ErrStuck.Error()) // the stream was ended by the pod, not by the client's deadline
	}
	for _, path := range []string{"/jobs", "/jobs/" + id, "/jobs/" + id + "/stream", "/events/stream", "/admin/workers/pods", "/ui/jobs"} {
		is.Equal(h.send("GET", path, "").status, http.StatusServiceUnavailable) // the pod does not serve stale data
	}
	is.Equal(h.send("GET", "/healthz", "").status, http.StatusOK) // a restart would not help
	is.Equal(h.send("GET", "/readyz", "").status, http.StatusServiceUnavailable)

	readOnly("off")
	pgtest.Wait(t, "reads work again", func() bool { return h.send("GET", "/jobs/"+id, "").status == http.StatusOK })
	h.watch("/jobs/" + id + "/stream").must(t)
}
