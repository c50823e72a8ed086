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

func TestScheduleSecretsWithoutPermission(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const secret = "hunter2-canary"
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{
		"root": {"platform_admin"}, "ana": {"operator", "submitter"}, "vic": {"viewer", "submitter"}, // submitters see their own jobs' secrets
	})}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[login]) (*runner.Outcome, error) {
			return runner.Done(j.Args), nil
		})
	})
	with := func(rest string) string {
		return `{"expression":"@yearly","kind":"login","args":{"user":"uma","password":"` + secret + `"}` + rest + `}`
	}
	is.Equal(h.send("PUT", nightly, with(""), "X-Who", "root").status, http.StatusOK)
	fire := h.send("POST", nightly+"/trigger", "", "X-Who", "root")
	is.Equal(fire.status, http.StatusOK)
	id := fire.body["job_id"].(string)
	h.untilAs(id, job.Succeeded, "X-Who", "root")
	for _, who := range []string{"ana", "vic"} {
		for _, path := range []string{
			"/admin/workers/schedules", nightly, nightly + "/occurrences", "/admin/workers/schedules/preview?expression=@daily", "/admin/workers/status", "/admin/workers/lanes",
			"/jobs", "/jobs/" + id, "/jobs/" + id + "/events", "/jobs/" + id + "/blockers", "/jobs/" + id + "/stream", "/pipelines", "/pipelines/" + id, "/pipelines/" + id + "/stream",
			"/events", "/admin/audit", "/admin/export/jobs", "/admin/export/events", "/metrics", "/openapi.json",
			"/ui/", "/ui/schedules", "/ui/schedules/nightly", "/ui/jobs", "/ui/jobs/" + id, "/ui/pipelines", "/ui/pipelines/" + id, "/ui/audit",
		} {
			seen := h.send("GET", path, "", "X-Who", who, "Accept", "text/html, */*")
			if seen.status == http.StatusOK && strings.Contains(seen.text, secret) {
				t.Errorf("%s sees the secret at %s", who, path)
			}
			is.True(seen.status == http.StatusOK || who == "vic" && seen.status == http.StatusForbidden) // hiding the secret does not break any page
		}
	}

	// Responses to rejected changes, and to changes by a caller who may not see the secret, must not contain it either.
	for _, body := range []string{`{"priority":101}`, `{"expression":"x"}`, `{"kind":"echo"}`, `{"args":"` + secret[:3] + `","unknown":1}`, `{"priority":3}`, `{"zone":"Europe/Zurich"}`} {
		for _, path := range []string{nightly, nightly + "?dry_run=true"} {
			is.True(!strings.Contains(h.send("PATCH", path, body, "X-Who", "ana").text, secret))
		}
	}
	refused := h.send("PUT", "/admin/workers/schedules/other", with(`,"missed":"perhaps"`), "X-Who", "ana")
	is.Equal(refused.status, http.StatusUnprocessableEntity)
	is.True(!strings.Contains(refused.text, secret))
	is.True(!strings.Contains(h.send("DELETE", nightly, "", "X-Who", "ana").text, secret))
	is.True(!strings.Contains(h.send("GET", nightly+"/occurrences", "", "X-Who", "ana").text, secret))
}
