package api_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRoleCapsOnSubmissions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"tenant"}, "bob": {"tenant", "batch"},
		"eve": {"tenant", "submitter"}})})
	put := func(role, body string) answer {
		return h.send("PUT", "/admin/roles/"+role, body, "X-Who", "root")
	}
	made := put("tenant", `{"permissions":["jobs:submit","jobs:read"],"scope":"own","max_priority":5,"max_delay":"1h","max_attempts":3}`)
	is.Equal(made.status, http.StatusOK)
	is.Equal([]any{made.body["max_priority"], made.body["max_delay"], made.body["max_attempts"]}, []any{5.0, "1h0m0s", 3.0})
	is.Equal(put("batch", `{"permissions":["jobs:submit"],"scope":"own","max_priority":20,"max_delay":60,"max_attempts":1}`).status, http.StatusOK)
	for _, wrong := range []string{`"max_priority":101`, `"max_delay":-1`, `"max_attempts":0`} {
		is.Equal(put("wrong", `{"permissions":["jobs:submit"],"scope":"own",`+wrong+`}`).status, http.StatusBadRequest)
	}
	is.Equal(put("wrong", `{"permissions":["jobs:read"],"scope":"own","max_priority":1}`).status, http.StatusBadRequest) // a cap is useless without the permission to submit

	for _, c := range []struct{ who, body, above string }{
		{"ana", `"priority":6`, "priority 6 is above your cap of 5"},
		{"ana", `"chain":[{"kind":"echo","priority":100}]`, "priority 100 is above your cap of 5"},
		{"ana", `"delay":"61m"`, "delay 1h1m0s is above your cap of 1h0m0s"},
		{"ana", `"max_attempts":4`, "max_attempts 4 is above your cap of 3"},
		{"ana", `"priority":5,"delay":3600,"max_attempts":3,"chain":[{"kind":"echo","priority":-5}]`, ""},
		{"bob", `"priority":20,"delay":3600,"max_attempts":3`, ""}, // the highest cap of several roles applies
		{"bob", `"priority":21`, "priority 21 is above your cap of 20"},
		{"eve", `"priority":100,"delay":"720h","max_attempts":50`, ""}, // eve has a role without caps
		{"root", `"priority":100,"delay":"720h","max_attempts":50`, ""},
	} {
		a := h.send("POST", "/jobs", `{"kind":"echo",`+c.body+`}`, "X-Who", c.who)
		if c.above == "" {
			is.Equal(a.status, http.StatusAccepted)
			continue
		}
		is.Equal(a.status, http.StatusForbidden)
		is.Equal([]any{a.body["code"], a.body["message"]}, []any{"above_cap", c.above})
	}
	plain := h.send("POST", "/jobs", `{"kind":"echo","delay":3600}`, "X-Who", "ana")
	is.Equal(plain.status, http.StatusAccepted)
	is.Equal(h.send("GET", "/jobs/"+plain.body["id"].(string), "", "X-Who", "ana").body["priority"], 5.0) // the default, 10, is above the cap
	audited := h.send("GET", "/admin/audit?actor=ana", "", "X-Who", "root").body["audit"].([]any)
	is.True(len(audited) > 0)
	is.Equal(audited[0].(map[string]any)["allowed"], false) // refusals are audited
}

func TestRoleAttemptCapBelowKind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const own = 4
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"tenant"}})}, func(r *runner.Runner) {
		runner.HandleRaw(r, "stubborn", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return nil, errors.New("no")
		}, runner.Retry(own, job.Backoff{Base: time.Millisecond}))
	})
	is.Equal(h.send("PUT", "/admin/roles/tenant", `{"permissions":["jobs:submit","jobs:read"],"scope":"own","max_attempts":3}`, "X-Who", "root").status, http.StatusOK)
	submit := func(who, body string) string {
		a := h.send("POST", "/jobs", body, "X-Who", who)
		is.Equal(a.status, http.StatusAccepted)
		return a.body["id"].(string)
	}
	attempts := func(id string) any { return h.untilAs(id, job.Failed, "X-Who", "root").body["attempt"] }
	is.Equal(attempts(submit("ana", `{"kind":"stubborn"}`)), 3.0)
	is.Equal(attempts(submit("ana", `{"kind":"stubborn","max_attempts":2}`)), 2.0)
	is.Equal(attempts(submit("root", `{"kind":"stubborn"}`)), float64(own))
	first := submit("ana", `{"kind":"echo","chain":[{"kind":"stubborn"}]}`)
	var step string
	pgtest.Wait(t, "the second step exists", func() bool {
		for _, one := range h.send("GET", "/jobs?kind=stubborn&pipeline="+first, "", "X-Who", "root").body["jobs"].([]any) {
			step = one.(map[string]any)["id"].(string)
		}
		return step != ""
	})
	is.Equal(attempts(step), 3.0)
	shown := func(id string) any { return h.send("GET", "/jobs/"+id, "", "X-Who", "root").body["max_attempts"] }
	is.Equal(shown(first), nil)                                                           // this kind's limit, 1, is below the cap
	is.Equal(shown(submit("ana", `{"kind":"elsewhere","allow_unregistered":true}`)), 1.0) // a kind that no pod handles gets this pod's default
}
