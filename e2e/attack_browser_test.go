package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
	"golang.org/x/net/html"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// A page on another origin sends requests that carry the session of a signed-in administrator.
func TestAttackCrossOriginRequests(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	session := a.session("root")
	id := a.submit("uma", `{"kind":"demo.sleep","args":{"ms":600000},"delay":"1h"}`)
	host := strings.TrimPrefix(a.HTTP, "http://")
	origins := map[string][]string{
		"no origin":                    {},
		"another origin":               {"Origin", "https://evil.example"},
		"an origin that contains ours": {"Origin", "http://" + host + ".evil.example"},
		"another port":                 {"Origin", "http://127.0.0.1:1"},
		"an opaque origin":             {"Origin", "null"},
		"another site":                 {"Sec-Fetch-Site", "cross-site"},
		"a sibling of the site":        {"Sec-Fetch-Site", "same-site", "Origin", "http://" + host},
		"a forged host":                {"Origin", "http://evil.example", "X-Forwarded-Host", "evil.example"},
	}
	for _, route := range api.Routes() {
		if route.Method == http.MethodGet {
			continue
		}
		for name, header := range origins {
			if name == "no origin" && strings.HasPrefix(route.Path, "/ui/") {
				continue // programs sign in without an Origin header
			}
			got := a.send(route.Method, at(route.Path, id), `{}`, append(header, "Cookie", session)...)
			if got.status != http.StatusForbidden {
				t.Errorf("%s %s from %s: %d %s", route.Method, route.Path, name, got.status, short(got.text))
			}
		}
	}
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", ""} { // content types that an HTML form can send
		got := a.send("POST", "/jobs", `{"kind":"demo.noop"}`, "Cookie", session, "Sec-Fetch-Site", "same-origin", "Content-Type", media)
		is.Equal(got.status, http.StatusUnsupportedMediaType)
	}
	preflight := a.send("OPTIONS", "/jobs", "", "Origin", "https://evil.example", "Access-Control-Request-Method", "POST")
	is.Equal(preflight.header.Get("Access-Control-Allow-Origin"), "")
	is.Equal(a.send("GET", "/jobs", "", "Cookie", session, "Origin", "https://evil.example").header.Get("Access-Control-Allow-Origin"), "") // the page cannot read the response
	is.Equal(a.ask("root", "GET", "/jobs/"+id, "").body["state"], "pending")
	is.True(a.refusals("anonymous") > 30)
	is.Equal(a.send("POST", "/jobs/"+id+"/cancel", "", "Cookie", session, "Origin", a.HTTP).status, http.StatusOK) // the same request from the dashboard itself succeeds
}

const script = `<script>alert(1)</script>"'><img src=x onerror=alert(2)><a href="javascript:alert(3)">x</a>{{.}}</title></textarea><svg onload=alert(4)>`

// Users and handlers put markup into every field that accepts text. Every page must show it as plain text.
func TestAttackStoredAndReflectedScripts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	text, err := json.Marshal(script)
	is.NoErr(err)
	quoted := string(text)
	made := func(body string) string { return a.submit("uma", body) }
	id := made(`{"kind":"demo.fail","subject":` + quoted + `,"unique_key":` + quoted + `,"args":{"message":` + quoted + `,"permanent":true}}`)
	echo := made(`{"kind":"demo.echo","args":` + quoted + `,"chain":[{"kind":"demo.echo","args":` + quoted + `}]}`)
	pgtest.Wait(t, "the jobs end", func() bool {
		return a.ask("root", "GET", "/jobs/"+id, "").body["state"] == "failed" && a.ask("root", "GET", "/jobs/"+echo, "").body["state"] == "succeeded"
	})
	refused := func(r reply) { // names of kinds, lanes and schedules cannot contain markup
		t.Helper()
		if r.status < 400 || r.status >= 500 {
			t.Errorf("%d %s", r.status, short(r.text))
		}
	}
	refused(a.ask("uma", "POST", "/jobs", `{"kind":`+quoted+`}`))
	refused(a.ask("uma", "POST", "/jobs", `{"kind":`+quoted+`,"allow_unregistered":true}`))
	refused(a.ask("ops", "PUT", "/admin/workers/lanes/"+url.PathEscape(script), `{"slots":1}`))
	refused(a.ask("ops", "PUT", "/admin/workers/schedules/"+url.PathEscape(script), `{"expression":"@yearly","kind":"demo.noop"}`))
	refused(a.ask("root", "PUT", "/admin/roles/"+url.PathEscape(script), `{"permissions":["jobs:read"],"scope":"own"}`))
	is.Equal(a.ask("ops", "PUT", "/admin/workers/schedules/nightly", `{"expression":"@yearly","kind":"demo.echo","args":`+quoted+`,"subject":`+quoted+`}`, "X-Reason", script).status, http.StatusOK)
	is.Equal(a.ask("ops", "POST", "/admin/workers/pause", "", "X-Reason", script).status, http.StatusOK)
	is.Equal(a.ask("root", "PUT", "/admin/roles/grants", `{"principal":`+quoted+`,"role":"viewer"}`).status, http.StatusOK)

	shown := 0
	for _, page := range ui.Routes() {
		path := strings.NewReplacer("{$}", "", "{id}", id, "{name}", "nightly").Replace(page.Path)
		query := ""
		for _, name := range []string{"kind", "lane", "subject", "state", "actor", "action", "target", "cursor", "since", "q", "name", "status"} {
			query += "&" + name + "=" + url.QueryEscape(script)
		}
		for _, at := range []string{path, path + "?" + query, strings.Replace(path, id, echo, 1), path + "/" + url.PathEscape(script)} {
			got := a.ask("root", "GET", "/ui"+at, "", "Accept", "text/html")
			shown += strings.Count(got.text, "alert(1)")
			harmless(t, at, got)
		}
	}
	is.True(shown > 5) // many pages do show the text
	for _, at := range []string{"/ui/login?failed=1&next=" + url.QueryEscape(script), "/ui/" + url.PathEscape(script), "/ui/jobs/" + url.PathEscape(script)} {
		harmless(t, at, a.send("GET", at, "", "Accept", "text/html"))
	}
	for _, path := range []string{"/jobs/" + id, "/jobs", "/admin/audit", "/events", "/jobs/" + url.PathEscape(script), "/jobs?kind=" + url.QueryEscape(script), "/" + url.PathEscape(script), "/metrics"} {
		got := a.ask("root", "GET", path, "")
		succeeded(t, path, map[string]bool{
			"the response is not JSON":     !strings.HasPrefix(got.header.Get("Content-Type"), "application/json") && path != "/metrics",
			"browsers may guess its type":  got.header.Get("X-Content-Type-Options") != "nosniff" && got.status == http.StatusOK,
			"the text is an HTML document": strings.HasPrefix(got.header.Get("Content-Type"), "text/html"),
		})
	}
	for _, next := range []string{"//evil.example", "https://evil.example", `\\evil.example`, "javascript:alert(1)", "/ui/../../evil", "jobs/../../../evil", "jobs\r\nX: y", script} {
		form := url.Values{"token": {"uma-0123456789-0123456789"}, "next": {next}}.Encode()
		got := a.send("POST", "/ui/login", form, "Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html", "Origin", a.HTTP)
		is.Equal([]any{got.status, got.header.Get("Location"), got.header.Get("X")}, []any{http.StatusSeeOther, "./", ""}) // the redirect stays in the dashboard
	}
}

// harmless fails the test if an HTML page contains an attacker's markup.
func harmless(t *testing.T, path string, r reply) {
	t.Helper()
	policy := r.header.Get("Content-Security-Policy")
	succeeded(t, path, map[string]bool{
		"a server error":              r.status >= 500,
		"no policy against scripts":   !strings.Contains(policy, "default-src 'self'") || strings.Contains(policy, "unsafe"),
		"other origins may frame it":  !strings.Contains(policy, "frame-ancestors 'none'"),
		"browsers may guess its type": r.header.Get("X-Content-Type-Options") != "nosniff",
	})
	document, err := html.Parse(strings.NewReader(r.text))
	if err != nil {
		t.Fatal(err)
	}
	for node := range document.Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		if node.Data == "script" && node.FirstChild != nil {
			t.Errorf("%s: an inline script: %s", path, short(node.FirstChild.Data))
		}
		for _, one := range node.Attr {
			value := strings.ToLower(strings.TrimSpace(one.Val))
			if strings.HasPrefix(one.Key, "on") || slices.Contains([]string{"href", "src", "action", "formaction"}, one.Key) && (strings.HasPrefix(value, "javascript:") || value == "x") {
				t.Errorf("%s: <%s %s=%s>", path, node.Data, one.Key, short(one.Val))
			}
		}
	}
}
