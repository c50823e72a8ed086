package api_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// byHeader authenticates a request by its X-User header, with the given roles.
func byHeader(roles ...string) func(*http.Request) (api.Principal, error) {
	return func(r *http.Request) (api.Principal, error) {
		return api.Principal{Name: r.Header.Get("X-User"), Roles: roles}, nil
	}
}

func TestStreamAfterRoleNarrowed(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var revoked, narrowed atomic.Bool
	h := newHost(t, api.Options{
		Streams: api.StreamOptions{KeepAlive: 20 * time.Millisecond},
		Authenticate: func(r *http.Request) (api.Principal, error) {
			if r.Header.Get("X-User") == "eve" || revoked.Load() {
				return api.Principal{}, errors.New("nobody")
			}
			if narrowed.Load() {
				return byHeader("submitter")(r)
			}
			return byHeader(r.Header.Values("X-Role")...)(r)
		},
	})
	submit := func(user string) string {
		a := h.send("POST", "/jobs", `{"kind":"echo"}`, "X-User", user, "X-Role", "submitter")
		is.Equal(a.status, http.StatusAccepted)
		return a.body["id"].(string)
	}
	bobs, anns := submit("bob"), submit("ann")
	is.Equal(h.send("GET", "/events/stream", "", "X-User", "eve").status, http.StatusUnauthorized)
	is.Equal(h.send("GET", "/pipelines/"+anns+"/stream", "", "X-User", "ann", "X-Role", "worker").status, http.StatusForbidden)
	is.Equal(h.send("GET", "/pipelines/"+bobs+"/stream", "", "X-User", "ann", "X-Role", "submitter").status, http.StatusNotFound)
	is.Equal(h.send("GET", "/jobs/"+bobs+"/stream", "", "X-User", "ann", "X-Role", "submitter").status, http.StatusNotFound)
	names, _ := named(t, h.watch("/pipelines/"+anns+"/stream", "X-User", "ann", "X-Role", "submitter").rest(t))
	is.Equal(names[len(names)-1], "end")

	own := h.watch("/events/stream?after=0", "X-User", "ann", "X-Role", "submitter")
	all := h.watch("/events/stream?after=0", "X-User", "ann", "X-Role", "viewer")
	for _, e := range second(named(t, own.until(t, "job.succeeded")))[1:] {
		is.Equal(strconv.FormatInt(*e.Job, 10), anns) // only ann's own events
	}
	seen := map[string]bool{}
	for len(seen) < 2 {
		for _, e := range second(named(t, all.until(t, "job.succeeded"))) {
			if e.Job != nil {
				seen[strconv.FormatInt(*e.Job, 10)] = true
			}
		}
	}
	is.True(seen[anns] && seen[bobs])
	submit("bob")
	last := submit("ann")
	is.Equal(strconv.FormatInt(*second(named(t, own.until(t, "job.enqueued")))[0].Job, 10), last) // this also holds for live events
	narrowed.Store(true)
	all.rest(t) // its caller may now read only ann's jobs
	is.Equal(all.comments[len(all.comments)-1], "permission revoked")
	revoked.Store(true)
	own.rest(t) // the server ends the stream
	is.Equal(own.comments[len(own.comments)-1], "permission revoked")
}

func TestTokenRemovedDuringEventStream(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "tokens.json")
	is.NoErr(os.WriteFile(path, []byte(`{"tokens":[{"token":"`+vicsToken+`","name":"vic","roles":["viewer"]}]}`), 0o600))
	tokens, err := api.TokenFile(path)
	is.NoErr(err)
	h := newIdleHost(t, api.Options{Authenticate: tokens.Authenticate})
	all := h.watch("/events/stream", "Authorization", "Bearer "+vicsToken)
	is.NoErr(os.WriteFile(path, []byte(`{"tokens":[]}`), 0o600))
	removed := time.Now()
	all.rest(t)
	is.Equal(all.comments, []string{"permission revoked"}) // no keep-alive came before
	is.True(time.Since(removed) < 10*time.Second)
}

func second[A, B any](_ A, b B) B { return b }

// A stream continues while the database cannot tell whether its caller may still read it.
func TestStreamCallerCheckFails(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var checks atomic.Int64
	h := newHostOn(t, pool, api.Options{
		Streams: api.StreamOptions{KeepAlive: 20 * time.Millisecond},
		Authenticate: func(r *http.Request) (api.Principal, error) {
			return byHeader("operator", "role-"+strconv.FormatInt(checks.Add(1), 10))(r) // a new role, so that no cached permissions apply
		},
	})
	all := h.watch("/events/stream?after=0", "X-User", "ann")
	all.until(t, "snapshot")
	_, err := pool.Exec(t.Context(), `alter table trapeze.grants rename to away`)
	is.NoErr(err)
	for since := checks.Load(); checks.Load() < since+3; {
		_, err := all.lines.ReadString('\n') // a keep-alive; after each second one, the caller is checked
		is.NoErr(err)
	}
	_, err = pool.Exec(t.Context(), `alter table trapeze.away rename to grants`)
	is.NoErr(err)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, "X-User", "ann").status, http.StatusAccepted)
	all.until(t, "job.enqueued")
}

// After a failover or a restore, the stream's cursor may belong to events that no longer exist. The stream ends, so that its client reconnects.
func TestHistoryChangeDuringStream(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{Streams: api.StreamOptions{KeepAlive: 20 * time.Millisecond}})
	all := h.watch("/events/stream?after=0")
	all.until(t, "snapshot")
	_, err := pool.Exec(t.Context(), `update trapeze.cluster set history = gen_random_uuid()`)
	is.NoErr(err)
	for began := time.Now(); ; {
		line, err := all.lines.ReadString('\n') // at least a keep-alive
		is.NoErr(err)
		is.True(time.Since(began) < 20*time.Second)
		if strings.Contains(line, "history has changed") {
			break
		}
	}
}
