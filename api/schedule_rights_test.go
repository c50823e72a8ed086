package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/runner"
)

func TestScheduleApprovalAndMaskBypass(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const secret = "hunter2-canary"
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{
		"root": {"platform_admin"}, "ana": {"operator"}, "kim": {"keeper", "submitter"}, "sub": {"submitter"}, "vic": {"viewer"},
	})}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[login]) (*runner.Outcome, error) {
			return runner.Done(j.Args), nil
		})
	})
	is.Equal(h.send("PUT", "/admin/roles/keeper", `{"permissions":["schedules:manage","workers:view"],"scope":"all"}`, "X-Who", "root").status, http.StatusOK)
	is.Equal(h.send("PUT", "/admin/workers/lanes/risky", `{"requires_approval":true,"kinds":["hold"]}`, "X-Who", "root").status, http.StatusOK)
	put := func(who, body string) answer { return h.send("PUT", nightly, body, "X-Who", who) }

	// A principal with schedules:manage may schedule any kind, except kinds that need approval.
	is.Equal(put("sub", `{"expression":"@daily","kind":"echo"}`).status, http.StatusForbidden)
	is.Equal(put("vic", `{"expression":"@daily","kind":"echo"}`).status, http.StatusForbidden)
	is.Equal(put("kim", `{"expression":"@daily","kind":"echo"}`).status, http.StatusOK)
	is.Equal(put("kim", `{"expression":"@daily","kind":"hold"}`).status, http.StatusForbidden)
	is.Equal(put("kim", `{"expression":"@daily","kind":"hold","lane":"default"}`).status, http.StatusForbidden) // choosing another lane does not help
	is.Equal(put("kim", `{"expression":"@daily","kind":"echo","lane":"risky"}`).status, http.StatusForbidden)
	is.Equal(put("ana", `{"expression":"@daily","kind":"hold","lane":"default"}`).status, http.StatusOK) // ana may approve
	is.Equal(h.send("PATCH", nightly, `{"args":{"n":1}}`, "X-Who", "kim").status, http.StatusForbidden)
	is.Equal(h.send("POST", nightly+"/trigger", "", "X-Who", "kim").status, http.StatusForbidden)
	is.Equal(h.send("POST", nightly+"/pause", "", "X-Who", "kim").status, http.StatusOK)
	is.Equal(h.send("POST", nightly+"/resume", "", "X-Who", "kim").status, http.StatusForbidden)
	is.Equal(h.send("PATCH", nightly, `{"paused":false}`, "X-Who", "kim").status, http.StatusForbidden)
	is.Equal(h.send("POST", nightly+"/resume", "", "X-Who", "ana").status, http.StatusOK)

	// kim must not see secrets in lists, changes, the audit log or the history, and must not be able to reveal them by changing the kind or
	// submitting the job.
	is.Equal(put("root", `{"expression":"@daily","kind":"login","args":{"user":"uma","password":"`+secret+`"}}`).status, http.StatusOK)
	is.True(strings.Contains(h.send("GET", nightly, "", "X-Who", "root").text, secret)) // root may see secrets
	shown := h.send("PATCH", nightly, `{"priority":3}`, "X-Who", "kim")
	is.Equal(shown.status, http.StatusOK)
	is.True(strings.Contains(shown.text, "uma") && !strings.Contains(shown.text, secret))
	carried := h.send("PATCH", nightly, `{"kind":"echo"}`, "X-Who", "kim")
	is.Equal(carried.status, http.StatusForbidden)
	is.True(strings.HasPrefix(carried.body["detail"].(string), `the new kind "echo" would get the args of "login"`))
	is.True(strings.Contains(carried.body["detail"].(string), "jobs:args"))
	triggered := h.send("POST", nightly+"/trigger", "", "X-Who", "kim")
	is.Equal(triggered.status, http.StatusOK)
	job := "/jobs/" + triggered.body["job_id"].(string)
	is.Equal(h.send("GET", job, "", "X-Who", "kim").status, http.StatusNotFound) // the job does not belong to kim
	is.Equal(h.send("DELETE", nightly, "", "X-Who", "kim").status, http.StatusNoContent)
	for _, path := range []string{"/admin/workers/schedules", job, "/admin/audit", "/events", "/admin/export/events"} {
		for _, who := range []string{"ana", "vic"} {
			seen := h.send("GET", path, "", "X-Who", who)
			is.True(!strings.Contains(seen.text, secret))
		}
	}
}
