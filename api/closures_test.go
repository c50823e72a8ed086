package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
)

func TestPauseAndDrainOrigin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: byName(map[string][]string{"ana": {"operator"}, "bob": {"operator"}, "vera": {"viewer"}})})
	before := time.Now().Add(-time.Minute)
	is.Equal(h.send("POST", "/admin/workers/pause", "", "X-Who", "ana", "X-Reason", "the disk of db-1 is full").status, http.StatusOK)
	is.Equal(h.send("POST", "/admin/workers/freeze", "", "X-Who", "bob", "X-Reason", "upgrade").status, http.StatusOK)
	is.Equal(h.send("POST", "/admin/workers/lanes/default/drain", "", "X-Who", "bob", "X-Reason", "too slow").status, http.StatusOK)
	now := h.send("GET", "/admin/workers/status", "", "X-Who", "vera").body
	queue := now["queue_state"].(map[string]any)
	says := func(one any, actor, reason string) {
		t.Helper()
		c := one.(map[string]any)
		since, err := time.Parse(time.RFC3339, c["since"].(string))
		is.NoErr(err)
		is.True(since.After(before) && since.Before(time.Now().Add(time.Minute)))
		is.Equal([]any{c["actor"], c["reason"]}, []any{actor, reason})
	}
	says(queue["pause"], "ana", "the disk of db-1 is full")
	says(queue["freeze"], "bob", "upgrade")
	says(now["lanes"].([]any)[0].(map[string]any)["drain"], "bob", "too slow")
	says(h.send("GET", "/admin/workers/lanes", "", "X-Who", "vera").body["lanes"].([]any)[0].(map[string]any)["drain"], "bob", "too slow")
	for _, page := range []string{"/ui/", "/ui/lanes"} {
		text := h.send("GET", page, "", "X-Who", "vera").text
		is.True(strings.Contains(text, "too slow"))
		is.Equal(strings.Contains(text, "the disk of db-1 is full"), page == "/ui/")
	}
	is.Equal(h.send("POST", "/admin/workers/resume", "", "X-Who", "bob").status, http.StatusOK)
	is.Equal(h.send("POST", "/admin/workers/lanes/default/undrain", "", "X-Who", "bob").status, http.StatusOK)
	now = h.send("GET", "/admin/workers/status", "", "X-Who", "vera").body
	queue = now["queue_state"].(map[string]any)
	is.Equal(queue["pause"], nil)
	says(queue["freeze"], "bob", "upgrade") // the freeze keeps its own reason
	is.Equal(now["lanes"].([]any)[0].(map[string]any)["drain"], nil)

	// A pause made in SQL has no audit entry, and the page must not show the entry of the earlier pause instead.
	is.Equal(h.send("POST", "/admin/workers/unfreeze", "", "X-Who", "bob").status, http.StatusOK)
	_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `update trapeze.queue_state set paused = true`)
	is.NoErr(err)
	queue = h.send("GET", "/admin/workers/status", "", "X-Who", "vera").body["queue_state"].(map[string]any)
	is.Equal([]any{queue["paused"], queue["pause"]}, []any{true, nil})
}

func TestDrainedPodOrigin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"ana": {"operator"}, "vera": {"viewer"}})})
	before := time.Now().Add(-time.Minute)
	is.Equal(h.send("POST", "/admin/workers/pods/"+h.PodID()+"/drain", "", "X-Who", "ana", "X-Reason", "its disk is full").status, http.StatusOK)
	for _, path := range []string{"/admin/workers/pods", "/admin/workers/status"} {
		drain := h.send("GET", path, "", "X-Who", "vera").body["pods"].([]any)[0].(map[string]any)["drain"].(map[string]any)
		since, err := time.Parse(time.RFC3339, drain["since"].(string))
		is.NoErr(err)
		is.True(since.After(before) && since.Before(time.Now().Add(time.Minute)))
		is.Equal([]any{drain["actor"], drain["reason"]}, []any{"ana", "its disk is full"})
	}
	shown := func() bool {
		return strings.Contains(h.send("GET", "/ui/pods", "", "X-Who", "vera", "X-Fresh", "1").text, "its disk is full")
	}
	is.True(shown())
	is.Equal(h.send("POST", "/admin/workers/pods/"+h.PodID()+"/undrain", "", "X-Who", "ana").status, http.StatusOK)
	is.True(!shown())
	is.Equal(h.send("GET", "/admin/workers/pods", "", "X-Who", "vera").body["pods"].([]any)[0].(map[string]any)["drain"], nil)
}
