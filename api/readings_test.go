package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// readingHost returns a host with the login kind, whose password is a secret. root may see the password, ana may not, and sub may see it
// only in its own jobs.
func readingHost(t *testing.T) *host {
	t.Helper()
	return newHost(t, api.Options{Authenticate: byName(map[string][]string{
		"root": {"platform_admin"}, "ana": {"operator"}, "sub": {"submitter"},
	})}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[login]) (*runner.Outcome, error) {
			return runner.Done(j.Args), nil
		})
	})
}

// readings returns the number of audit entries about secrets that were shown.
func (h *host) readings() (n int) {
	h.t.Helper()
	err := inside.Of(h.Runner).Store.Pool().QueryRow(h.t.Context(), `select count(*) from `+inside.Of(h.Runner).Store.Schema()+`.audit where action = 'job.read_args'`).Scan(&n)
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

func TestSecretReadAudit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := readingHost(t)
	const body = `{"kind":"login","args":{"user":"uma","password":"hunter2-canary"},"chain":[{"kind":"login","args":{"password":"hunter2-canary"}}]}`
	id := h.send("POST", "/jobs", body, "X-Who", "sub").body["id"].(string)
	plain := h.send("POST", "/jobs", `{"kind":"noisy"}`, "X-Who", "sub").body["id"].(string)
	h.untilAs(id, job.Succeeded, "X-Who", "sub") // the submitter may read its own secret
	h.untilAs(plain, job.Running, "X-Who", "root")
	h.send("GET", "/jobs", "", "X-Who", "ana") // the secret is masked
	h.send("GET", "/admin/export/jobs", "", "X-Who", "ana")
	h.send("GET", "/jobs/"+plain, "", "X-Who", "root") // this job has no secret
	is.Equal(h.readings(), 0)

	for path, want := range map[string]string{
		"/jobs/" + id:                      "job " + id,
		"/jobs?kind=login&state=succeeded": "jobs",
		"/jobs?subject=nobody":             "",
		"/pipelines/" + id:                 "pipeline " + id,
		"/jobs/" + id + "/events":          "",
		"/admin/export/jobs":               "jobs",
		"/admin/workers/status":            "",
	} {
		before := h.readings()
		a := h.send("GET", path, "", "X-Who", "root", "X-Reason", "an incident")
		is.Equal(a.status, http.StatusOK)
		if want == "" {
			is.True(!strings.Contains(a.text, "hunter2"))
			is.Equal(h.readings(), before) // no secret was shown
			continue
		}
		is.True(strings.Contains(a.text, "hunter2"))
		is.Equal(h.readings(), before+1) // one entry per request
		row := h.send("GET", "/admin/audit?action=job.read_args&limit=1", "", "X-Who", "ana").body["audit"].([]any)[0].(map[string]any)
		is.Equal([]any{row["actor"], row["target"], row["allowed"], row["reason"], row["source"]}, []any{"root", want, true, "an incident", "127.0.0.1"})
		after := row["after"].(map[string]any)
		is.Equal(after["asked"], "/trapeze"+path)
		is.True(strings.Contains(fmt.Sprint(after["shown"]), "job "+id))
	}
	before := h.readings()
	h.send("GET", "/jobs/"+id, "", "X-Who", "root")
	h.watch("/jobs/"+id+"/stream", "X-Who", "root").rest(t)
	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+id, "", "X-Who", "root").text, "hunter2"))
	is.Equal(h.readings(), before) // readings repeated within a minute are not recorded again
}

func TestSecretReadAuditNormalizedQuery(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := readingHost(t)
	for subject, spelled := range map[string]string{"Änn Lee:1": "%c3%84%6en%20Lee:1", strings.Repeat("Ä", 200): strings.Repeat("%C3%84", 200)} {
		id := h.send("POST", "/jobs", `{"kind":"login","subject":"`+subject+`","args":{"password":"hunter2-canary"}}`, "X-Who", "sub").body["id"].(string)
		h.untilAs(id, job.Succeeded, "X-Who", "sub")
		is.True(strings.Contains(h.send("GET", "/jobs?%73ubject="+spelled+"&limit=9", "", "X-Who", "root").text, "hunter2"))
		row := h.send("GET", "/admin/audit?action=job.read_args&limit=1", "", "X-Who", "ana").body["audit"].([]any)[0].(map[string]any)
		want := "/trapeze/jobs?limit=9"
		if len(subject) < 100 { // longer parameters are omitted entirely
			want += "&subject=" + url.QueryEscape(subject)
		}
		is.Equal(row["after"].(map[string]any)["asked"], want)
	}
}

func TestSecretReadAuditStreamsPages(t *testing.T) {
	t.Parallel()
	h, readings := readingHost(t), 0
	for name, read := range map[string]func(h *host, id string){
		"stream of a job":      func(h *host, id string) { h.watch("/jobs/"+id+"/stream", "X-Who", "root").rest(h.t) },
		"page of a job":        func(h *host, id string) { h.send("GET", "/ui/jobs/"+id, "", "X-Who", "root") },
		"pipelines":            func(h *host, id string) { h.send("GET", "/pipelines", "", "X-Who", "root") },
		"stream of a pipeline": func(h *host, id string) { h.watch("/pipelines/"+id+"/stream", "X-Who", "root").until(t, "snapshot") },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			body := `{"kind":"login","args":{"password":"hunter2-canary"}}`
			if strings.Contains(name, "pipeline") { // pipelines show the arguments of planned steps
				body = `{"kind":"hold","chain":[{"kind":"login","args":{"password":"hunter2-canary"}}]}`
			}
			id := h.send("POST", "/jobs", body, "X-Who", "sub").body["id"].(string)
			if !strings.Contains(name, "pipeline") {
				h.untilAs(id, job.Succeeded, "X-Who", "sub")
			}
			read(h, id)
			readings++
			is.Equal(h.readings(), readings)
		})
	}
}

func TestSecretReadAuditUnwritable(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := readingHost(t)
	id := h.send("POST", "/jobs", `{"kind":"login","args":{"user":"uma","password":"hunter2-canary"}}`, "X-Who", "sub").body["id"].(string)
	h.untilAs(id, job.Succeeded, "X-Who", "sub")
	_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `alter table `+inside.Of(h.Runner).Store.Schema()+`.audit add constraint full_up check (action <> 'job.read_args')`)
	is.NoErr(err)
	for _, path := range []string{"/jobs/" + id, "/jobs", "/pipelines/" + id, "/jobs/" + id + "/stream", "/admin/export/jobs"} {
		a := h.send("GET", path, "", "X-Who", "root")
		is.Equal(a.status, http.StatusInternalServerError)
		is.Equal(a.body["code"], "internal")
		is.True(!strings.Contains(a.text, "hunter2"))
	}
	is.True(!strings.Contains(h.send("GET", "/ui/jobs/"+id, "", "X-Who", "root").text, "hunter2"))
	is.Equal(h.send("GET", "/jobs/"+id, "", "X-Who", "ana").status, http.StatusOK) // callers that see no secret are not affected
	is.Equal(h.send("GET", "/jobs/"+id, "", "X-Who", "sub").status, http.StatusOK)
	_, err = inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `alter table `+inside.Of(h.Runner).Store.Schema()+`.audit drop constraint full_up`)
	is.NoErr(err)
	pgtest.Wait(t, "the audit entry can be written", func() bool { return h.send("GET", "/jobs/"+id, "", "X-Who", "root").status == http.StatusOK })
	is.Equal(h.readings(), 1)
}

func TestScheduleSecretReadAudit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := readingHost(t)
	const path = "/admin/workers/schedules"
	made := h.send("PUT", path+"/nightly", `{"expression":"0 3 * * *","kind":"login","args":{"password":"hunter2-canary"}}`, "X-Who", "root")
	is.Equal(made.status, http.StatusOK)
	is.Equal(h.readings(), 0) // root supplied the secret in this request
	for _, read := range []string{path, path + "/nightly"} {
		masked := h.send("GET", read, "", "X-Who", "ana")
		is.Equal(masked.status, http.StatusOK)
		is.True(!strings.Contains(masked.text, "hunter2")) // an operator sees no secrets
	}
	is.Equal(h.readings(), 0)
	is.True(strings.Contains(h.send("GET", path, "", "X-Who", "root").text, "hunter2"))
	is.Equal(h.readings(), 1) // one entry for the whole list
	is.True(!strings.Contains(h.send("GET", "/ui/schedules/nightly", "", "X-Who", "ana").text, "hunter2"))
	is.Equal(h.readings(), 1)
	is.True(strings.Contains(h.send("GET", "/ui/schedules/nightly", "", "X-Who", "root").text, "hunter2"))
	is.Equal(h.readings(), 2) // a dashboard page is recorded too
	row := h.send("GET", "/admin/audit?action=job.read_args&limit=1", "", "X-Who", "ana").body["audit"].([]any)[0].(map[string]any)
	is.Equal([]any{row["actor"], row["target"]}, []any{"root", "schedule nightly"})
}
