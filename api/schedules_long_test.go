//go:build long

package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// A change over HTTP takes effect on every pod by its next heartbeat, without a restart.
func TestLiveScheduleChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{Authenticate: authenticateAs("ann", "platform_admin")})
	other := newHostOn(t, pool, api.Options{Authenticate: authenticateAs("ann", "platform_admin")})

	is.Equal(h.send("PUT", nightly, `{"expression":"0 0 1 1 *","kind":"echo"}`).status, http.StatusOK)
	fires := func() []any { return h.send("GET", nightly+"/occurrences", "").body["occurrences"].([]any) }
	is.Equal(len(fires()), 0)
	changed := time.Now()
	is.Equal(h.send("PATCH", nightly, `{"expression":"* * * * * *"}`).status, http.StatusOK)
	pgtest.Wait(t, "the changed schedule fires", func() bool { return len(fires()) >= 3 })
	is.True(time.Since(changed) < 20*time.Second)
	h.stop() // the other pod has received the change too
	was := len(fires())
	pgtest.Wait(t, "the other pod fires it", func() bool { return len(fires()) > was })
	h = other
	one := fires()[0].(map[string]any)
	is.Equal([]any{one["outcome"], one["manual"]}, []any{"fired", false})

	is.Equal(h.send("POST", nightly+"/pause", "").body["changed"], true)
	is.Equal(h.send("POST", nightly+"/pause", "").body["changed"], false)
	paused := h.send("GET", nightly, "").body
	is.Equal([]any{paused["paused"], paused["next_at"], paused["next_occurrences"]}, []any{true, nil, []any{}})
	was = len(fires())
	triggered := h.send("POST", nightly+"/trigger", "")
	is.Equal(triggered.status, http.StatusOK)
	is.Equal([]any{triggered.body["outcome"], triggered.body["manual"]}, []any{"fired", true})
	h.until(triggered.body["job_id"].(string), "succeeded")
	is.Equal(len(fires()), was+1) // only the triggered occurrence, because the schedule is paused
	resumed := time.Now()
	is.Equal(h.send("POST", nightly+"/resume", "").body["changed"], true)
	pgtest.Wait(t, "it fires again", func() bool { return len(fires()) > was+2 })
	for _, f := range fires()[:len(fires())-was-1] {
		at, err := time.Parse(time.RFC3339, f.(map[string]any)["fire_at"].(string))
		is.NoErr(err)
		is.True(at.After(resumed.Add(-2 * time.Second))) // occurrences missed during the pause do not fire
	}
	is.Equal(h.send("POST", nightly+"/pause", "").status, http.StatusOK)
	trail, err := admin.AuditTrail(t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Action: "schedule.trigger"})
	is.NoErr(err)
	is.Equal(len(trail), 1)
	is.Equal([]string{trail[0].Actor, trail[0].Target}, []string{"ann", "schedule nightly"})

	seen, cursor := map[string]bool{}, "" // the history spans several pages
	for {
		page := h.send("GET", nightly+"/occurrences?limit=2&cursor="+cursor, "")
		is.Equal(page.status, http.StatusOK)
		for _, f := range page.body["occurrences"].([]any) {
			at := f.(map[string]any)["fire_at"].(string)
			is.True(!seen[at]) // no occurrence is listed twice
			seen[at] = true
		}
		if cursor = page.body["next_cursor"].(string); cursor == "" {
			break
		}
	}
	is.Equal(len(seen), len(fires()))
	is.Equal(h.send("GET", nightly+"/occurrences?cursor=x", "").status, http.StatusBadRequest)
	is.Equal(h.send("GET", nightly+"/occurrences?limit=0", "").status, http.StatusBadRequest)
}
