package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// Each user calls every route that the user's role does not permit. In-process tests in package api cover every combination of role and
// page.
func TestAttackRoutesOfOtherRoles(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	id := a.submit("uma", `{"kind":"demo.noop","delay":"1h"}`)
	before := a.refusals("vic")
	refused := 0
	for _, user := range [][2]string{{"vic", access.Viewer}, {"uma", access.Submitter}, {"ops", access.Operator}, {"wil", access.Worker}, {"mia", ""}, {"", ""}} {
		who := user[0]
		role, _ := access.BuiltInRole(user[1])
		for _, route := range api.Routes() {
			if route.Needs == access.Nothing || slices.Contains(role.Permissions, route.Needs) {
				continue
			}
			want := http.StatusForbidden
			if who == "" {
				want = http.StatusUnauthorized
			}
			header := []string{"X-Forwarded-User", "root", "X-Forwarded-Groups", "platform_admin", "X-HTTP-Method-Override", "GET", "X-Original-URL", "/healthz"}
			got := a.ask(who, route.Method, at(route.Path, id), `{"principal":"`+who+`","role":"platform_admin","roles":["platform_admin"]}`, header...)
			if got.status != want {
				t.Errorf("%s %s as %q: %d %s", route.Method, route.Path, who, got.status, short(got.text))
			}
			if who == "vic" && route.Method != http.MethodGet {
				refused++
			}
		}
	}
	is.True(refused > 20)
	is.True(a.refusals("vic")-before >= min(refused, 50))             // refused changes are audited, except those beyond the rate limit
	for _, who := range []string{"vic", "uma", "ops", "wil", "mia"} { // nobody gained a role
		is.Equal(a.ask(who, "GET", "/admin/roles", "").status, http.StatusForbidden)
	}
	grants := a.ask("root", "GET", "/admin/roles/grants", "")
	is.Equal(grants.body["grants"], []any{})
	is.Equal(a.ask("root", "GET", "/jobs/"+id, "").body["state"], "pending")
	for _, name := range []string{"platform_admin", "viewer"} { // built-in roles cannot be replaced
		is.Equal(a.ask("root", "PUT", "/admin/roles/"+name, `{"permissions":["roles:manage"],"scope":"all"}`).status, http.StatusConflict)
	}
}

var digits = regexp.MustCompile(`\d+`)

// A submitter requests another submitter's jobs, pipelines, events and streams.
func TestAttackJobsOfAnotherSubmitter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	const canary = "canary-of-uma"
	theirs := a.submit("uma", `{"kind":"demo.fail","subject":"`+canary+`","args":{"message":"`+canary+`","permanent":true},"chain":[{"kind":"demo.echo","args":"`+canary+`"}]}`)
	pgtest.Wait(t, "the job fails", func() bool { return a.ask("uma", "GET", "/jobs/"+theirs, "").body["state"] == "failed" })
	own := a.submit("eve", `{"kind":"demo.noop"}`)
	before := a.refusals("eve")
	refused := 0
	for _, route := range api.Routes() {
		if !strings.Contains(route.Path, ":id") || strings.HasPrefix(route.Path, "/admin/workers/pods") {
			continue
		}
		got, none := a.ask("eve", route.Method, at(route.Path, theirs), ""), a.ask("eve", route.Method, at(route.Path, "999999"), "")
		if route.Method != http.MethodGet && got.code() != "forbidden" {
			refused++
		}
		said := func(r reply) string {
			return digits.ReplaceAllString(fmt.Sprint(r.status, r.body["code"], r.body["message"], r.body["detail"]), "N")
		}
		succeeded(t, route.Method+" "+route.Path, map[string]bool{
			"it is let through":                            got.status != http.StatusNotFound && got.status != http.StatusForbidden,
			"the response shows the job":                   strings.Contains(got.text, canary),
			"it differs from one for a job that is no job": said(got) != said(none),
		})
	}
	is.True(refused >= 3)
	is.True(a.refusals("eve")-before >= refused) // attempts to change another submitter's jobs are audited

	for _, path := range []string{"/jobs", "/jobs?subject=" + canary, "/jobs?pipeline=" + theirs, "/jobs?parent=" + theirs, "/jobs?state=failed", "/jobs?children=true&since=1h",
		"/jobs?current=true", "/jobs/current?kind=demo.fail&subject=" + canary, "/pipelines", "/pipelines?status=failed", "/events?after=0", "/ui/jobs", "/ui/jobs?subject=" + canary,
		"/ui/pipelines", "/ui/jobs/" + theirs, "/ui/pipelines/" + theirs} {
		got := a.ask("eve", "GET", path, "", "Accept", "text/html")
		text := strings.NewReplacer("subject="+canary, "", `value="`+canary+`"`, "", `subject \"`+canary, "").Replace(got.text) // responses repeat the values of the filters
		succeeded(t, path, map[string]bool{
			"a server error":          got.status >= 500,
			"it shows the job's text": strings.Contains(text, canary),
			"it shows the job":        strings.Contains(text, `"id":"`+theirs+`"`) || strings.Contains(text, "jobs/"+theirs+`"`),
		})
	}
	for _, page := range ui.Routes() {
		if !page.Own && page.Path != "/{$}" { // the start page redirects to the first page that the visitor may see
			is.Equal(a.ask("eve", "GET", "/ui"+strings.Replace(page.Path, "{name}", "default", 1), "").status, http.StatusForbidden)
		}
	}

	// Two submitters can use the same idempotency key without affecting each other.
	first := a.ask("uma", "POST", "/jobs", `{"kind":"demo.noop"}`, "Idempotency-Key", "k-1").body
	second := a.ask("eve", "POST", "/jobs", `{"kind":"demo.noop"}`, "Idempotency-Key", "k-1").body
	is.True(first["id"] != second["id"])
	is.Equal(second["duplicate"], false)
	// A submitter cannot submit a job under another name.
	is.True(a.ask("eve", "POST", "/jobs", `{"kind":"demo.noop","submitter":"uma"}`).status == http.StatusBadRequest)
	is.Equal(a.ask("eve", "GET", "/jobs/"+own, "", "X-Forwarded-User", "uma").body["submitter"], "eve")

	// On the stream of all events, submitters receive only their own jobs' events.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", a.HTTP+"/events/stream?after=0", nil)
	is.NoErr(err)
	request.Header.Set("Authorization", "Bearer eve-0123456789-0123456789")
	response, err := http.DefaultClient.Do(request)
	is.NoErr(err)
	defer response.Body.Close()
	another := a.submit("uma", `{"kind":"demo.noop","subject":"`+canary+`"}`)
	pgtest.Wait(t, "the job of uma ends", func() bool { return a.ask("uma", "GET", "/jobs/"+another, "").body["state"] == "succeeded" })
	last := a.submit("eve", `{"kind":"demo.noop"}`)
	ended := false
	for lines := bufio.NewScanner(response.Body); !ended && lines.Scan(); {
		for _, id := range []string{theirs, another} {
			is.True(!strings.Contains(lines.Text(), `"job":"`+id+`"`))
		}
		ended = strings.Contains(lines.Text(), `"job":"`+last+`"`) && strings.Contains(lines.Text(), "job.succeeded")
	}
	is.True(ended)
}
