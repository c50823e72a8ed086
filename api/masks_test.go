package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type login struct {
	User     string `json:"user"`
	Password string `json:"password" secret:"true"`
	PIN      int    `json:"pin"`
}

func (login) Kind() string { return "login" }

// byName authenticates a request by the name in its X-Who header and looks up that name's roles.
func byName(roles map[string][]string) func(*http.Request) (api.Principal, error) {
	return func(r *http.Request) (api.Principal, error) {
		name := r.Header.Get("X-Who")
		if roles[name] == nil {
			return api.Principal{}, api.ErrUnauthenticated
		}
		return api.Principal{Name: name, Roles: roles[name]}, nil
	}
}

func TestMaskedSecretsByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const secret, pin = "hunter2-canary", "47110815"
	h := newHost(t, api.Options{Secrets: []string{"/pin"}, Authenticate: byName(map[string][]string{
		"root": {"platform_admin"}, "ana": {"operator"}, "sub": {"submitter"},
	})}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[login]) (*runner.Outcome, error) {
			return runner.Done(j.Args), nil
		})
	})
	made := h.send("POST", "/jobs", `{"kind":"login","args":{"user":"uma","PASSWORD":"`+secret+`","pin":`+pin+`},
		"chain":[{"kind":"echo","args":{"token":"`+secret+`"}}]}`, "X-Who", "sub")
	is.Equal(made.status, http.StatusAccepted)
	id := made.body["id"].(string)
	var shown answer
	for _, who := range []string{"sub", "root"} {
		shown = h.untilAs(id, job.Succeeded, "X-Who", who)
		is.Equal(strings.Count(shown.text, secret), 3) // visible to the submitter and the admin in the arguments, the result and the planned step
		is.Equal(strings.Count(shown.text, pin), 2)
	}
	for _, path := range []string{"/jobs/" + id, "/jobs?pipeline=" + id, "/jobs"} {
		shown = h.send("GET", path, "", "X-Who", "ana")
		is.Equal(shown.status, http.StatusOK)
		is.True(!strings.Contains(shown.text, secret)) // masked everywhere
		is.True(!strings.Contains(shown.text, pin))
		is.True(strings.Contains(shown.text, "uma"))   // other fields are shown
		is.True(strings.Contains(shown.text, "token")) // field names are shown even for kinds without a registered type
	}
}

func TestMaskedArgumentsOfUnexpectedShape(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const secret = "47110815"
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"operator"}})}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[login]) (*runner.Outcome, error) { return nil, nil })
	})
	for _, args := range []string{`{"password":` + secret + `}`, `"` + secret + `"`, secret, `[` + secret + `]`, `[{"password":"` + secret + `"}]`} {
		made := h.send("POST", "/jobs", `{"kind":"login","args":`+args+`,"chain":[{"kind":"login","args":`+args+`}]}`, "X-Who", "root")
		is.Equal(made.status, http.StatusAccepted)
		id := made.body["id"].(string)
		h.untilAs(id, job.Failed, "X-Who", "root")
		for _, path := range []string{"/jobs/" + id, "/jobs", "/pipelines/" + id, "/jobs/" + id + "/events", "/ui/jobs/" + id} {
			shown := h.send("GET", path, "", "X-Who", "ana")
			is.Equal(shown.status, http.StatusOK)
			is.True(!strings.Contains(shown.text, secret)) // not in the arguments, the planned step or the error
		}
	}
}

// An old pod of a rolling deploy does not know which fields the new release declares as secret.
func TestUndeclaredFieldsAreHidden(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const secret = "hunter2-canary"
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"operator"}})}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[login]) (*runner.Outcome, error) { return nil, nil })
	})
	args := `{"user":"uma","api_key":"` + secret + `"}`
	made := h.send("POST", "/jobs", `{"kind":"login","args":`+args+`,"chain":[{"kind":"login","args":`+args+`}]}`, "X-Who", "root")
	is.Equal(made.status, http.StatusAccepted)
	id := made.body["id"].(string)
	h.untilAs(id, job.Succeeded, "X-Who", "root")
	for _, path := range []string{"/jobs/" + id, "/jobs", "/pipelines/" + id, "/export/jobs", "/ui/jobs/" + id, "/ui/jobs"} {
		shown := h.send("GET", path, "", "X-Who", "ana")
		is.True(!strings.Contains(shown.text, secret)) // not in the arguments or the planned step
	}
	shown := h.send("GET", "/jobs/"+id, "", "X-Who", "ana")
	is.Equal(shown.status, http.StatusOK)
	is.True(strings.Contains(shown.text, "uma"))
	is.True(strings.Contains(h.send("GET", "/jobs/"+id, "", "X-Who", "root").text, secret))
}
