package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
)

var injections = []string{"'", `"`, `\`, "' or '1'='1", "1 or 1=1", "1; drop table trapeze.live; --", "x') union select name, name from trapeze.roles --",
	"'||pg_sleep(20)||'", "1); select pg_sleep(20); --", "$1", "%", "_", "\x00", "\xff", "' or submitter='uma", "{succeeded,failed}", "null", "-1", "9223372036854775808", "1e400", "NaN"}

var errorOfSQL = regexp.MustCompile(`(?i)sqlstate|syntax error|pgconn|unterminated|relation "|column "|trapeze\.(live|done|audit)`)

// This test injects SQL into every path and query parameter of every route and page. No response may be a server error, take long, or
// reveal more than the same request without the injection.
func TestAttackSQLInParameters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	id := a.submit("uma", `{"kind":"demo.noop","subject":"secret-subject","delay":"1h"}`)
	attack := func(who, path string) {
		t.Helper()
		began := time.Now()
		got := a.ask(who, "GET", path, "")
		succeeded(t, path, map[string]bool{
			"a server error":          got.status >= 500,
			"an error of PostgreSQL":  got.status >= 400 && errorOfSQL.MatchString(digestible(got, path)),
			"it sleeps":               time.Since(began) > 15*time.Second,
			"it shows a job of uma's": who == "eve" && strings.Contains(got.text, "secret-subject"),
		})
	}
	for _, route := range api.Routes() {
		if route.Method != http.MethodGet || strings.HasPrefix(route.Path, "/admin/export") {
			continue
		}
		who := "root"
		if strings.HasPrefix(route.Path, "/jobs") || strings.HasPrefix(route.Path, "/pipelines") || strings.HasPrefix(route.Path, "/events") {
			who = "eve"
		}
		for _, injection := range injections {
			if route.Path != at(route.Path, "") {
				attack("root", at(route.Path, url.PathEscape(injection)))
			}
			for _, name := range queriesOf(t, a, route) {
				if strings.HasSuffix(route.Path, "/stream") && !strings.ContainsAny(injection, "'\";") || name == "wait" {
					continue // with a valid cursor, the stream would never end
				}
				attack(who, at(route.Path, id)+"?"+url.Values{name: {injection}}.Encode())
			}
		}
	}
	for _, page := range ui.Routes() {
		for _, injection := range injections {
			query := url.Values{}
			for _, name := range []string{"kind", "lane", "subject", "state", "actor", "action", "target", "cursor", "since", "status", "name", "before", "after", "limit"} {
				query.Set(name, injection)
			}
			attack("root", "/ui"+strings.NewReplacer("{$}", "", "{id}", url.PathEscape(injection), "{name}", url.PathEscape(injection)).Replace(page.Path)+"?"+query.Encode())
		}
	}
	for _, injection := range injections { // request bodies
		text := strings.ToValidUTF8(strings.ReplaceAll(fmt.Sprintf("%q", injection), `\x`, `\u00`), "?")
		for _, name := range []string{"kind", "lane", "subject", "reason", "error_class", "error_code", "since", "pipeline"} {
			got := a.ask("root", "POST", "/admin/workers/jobs/cancel", `{"filter":{"`+name+`":`+text+`},"dry_run":true}`)
			succeeded(t, name+"="+injection, map[string]bool{
				"a server error":   got.status >= 500,
				"it matches a job": got.status == http.StatusOK && got.body["matched"] != 0.0,
			})
		}
		for _, body := range []string{`{"kind":"demo.noop","delay":"1h","subject":` + text + `,"unique_key":` + text + `}`, `{"kind":` + text + `}`, `{"kind":"demo.noop","lane":` + text + `}`} {
			if got := a.ask("eve", "POST", "/jobs", body, "Idempotency-Key", strings.Map(printable, injection), "X-Reason", strings.Map(printable, injection)); got.status >= 500 {
				t.Errorf("%s: %d %s", body, got.status, short(got.text))
			}
		}
	}
	is.Equal(a.ask("uma", "GET", "/jobs/"+id, "").body["state"], "pending") // the tables still exist, and the job was not cancelled
	is.True(!strings.Contains(a.log.String(), "42601"))                     // the SQLSTATE of a syntax error
}

// queriesOf returns a route's query parameters, as listed in the OpenAPI document.
func queriesOf(t *testing.T, a *target, route api.Route) (names []string) {
	t.Helper()
	if a.document == nil {
		a.document = a.send("GET", "/openapi.json", "").body
	}
	path := parameters.ReplaceAllStringFunc(route.Path, func(name string) string { return "{" + name[1:] + "}" })
	operation, ok := a.document["paths"].(map[string]any)[path].(map[string]any)[strings.ToLower(route.Method)].(map[string]any)
	if !ok {
		t.Fatalf("no %s %s in the OpenAPI document", route.Method, path)
	}
	list, _ := operation["parameters"].([]any)
	for _, one := range list {
		if one := one.(map[string]any); one["in"] == "query" {
			names = append(names, one["name"].(string))
		}
	}
	return names
}

// digestible returns the text of a response without the request's parameters, which the response may echo.
func digestible(r reply, path string) string {
	text := r.text
	if at, err := url.Parse(path); err == nil {
		for _, values := range at.Query() {
			text = strings.ReplaceAll(strings.ReplaceAll(text, values[0], ""), strings.ReplaceAll(values[0], `"`, `\"`), "")
		}
		for part := range strings.SplitSeq(at.Path, "/") {
			text = strings.ReplaceAll(text, part, "")
		}
	}
	return text
}

func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return -1
	}
	return r
}

// This test sends bodies that are cheap for an attacker but would be expensive for a careless server.
func TestAttackBombs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	var member bytes.Buffer
	w := gzip.NewWriter(&member)
	_, err := io.CopyN(w, zeros{}, 8<<20)
	is.NoErr(err)
	is.NoErr(w.Close())
	zipped := strings.Repeat(member.String(), 32) // 256 MiB of zeros, because a reader decompresses one member after another
	args := func(text string) string { return `{"kind":"demo.echo","args":` + text + `}` }
	before := resident(t, a.cmd.Process.Pid)
	for name, c := range map[string]struct {
		body, path string
		header     []string
		status     []int
	}{
		"gzip":               {zipped, "/jobs", []string{"Content-Encoding", "gzip"}, []int{400, 415}},
		"gzip of a form":     {zipped, "/ui/login", []string{"Content-Encoding", "gzip", "Content-Type", "application/x-www-form-urlencoded"}, []int{400, 401, 415}},
		"nested lists":       {args(strings.Repeat("[", 1_000_000)), "/jobs", nil, []int{400}},
		"nested objects":     {args(strings.Repeat(`{"a":`, 500_000) + "1" + strings.Repeat("}", 500_000)), "/jobs", nil, []int{400}},
		"a long number":      {args(strings.Repeat("9", 2_000_000)), "/jobs", nil, []int{400, 413}},
		"a large number":     {`{"kind":"demo.echo","priority":1e400}`, "/jobs", nil, []int{400}},
		"many members":       {args("{" + strings.Repeat(`"a":1,`, 300_000) + `"b":1}`), "/jobs", nil, []int{400, 413}},
		"a long chain":       {`{"kind":"demo.echo","chain":[` + strings.Repeat(`{"kind":"demo.echo"},`, 150_000) + `{"kind":"demo.echo"}]}`, "/jobs", nil, []int{400, 413}},
		"one string":         {args(`"` + strings.Repeat("x", 3_900_000) + `"`), "/jobs", nil, []int{400, 413}},
		"more than a body":   {strings.Repeat(" ", 64<<20), "/jobs", nil, []int{413}},
		"a large form":       {strings.Repeat("token=x&", 1<<20), "/ui/login", []string{"Content-Type", "application/x-www-form-urlencoded"}, []int{400, 413}},
		"two values":         {args("1") + args("2"), "/jobs", nil, []int{400}},
		"a duplicate member": {`{"kind":"demo.echo","kind":"demo.noop"}`, "/jobs", nil, []int{400}},
		"no UTF-8":           {args("\"\xff\""), "/jobs", nil, []int{400}},
		"a NUL":              {args(`"\u0000"`), "/jobs", nil, []int{400}},
		"nothing":            {"", "/jobs", []string{"Content-Type", "application/json"}, []int{400}},
	} {
		got := a.ask("uma", "POST", c.path, c.body, c.header...)
		ok := false
		for _, status := range c.status {
			ok = ok || got.status == status
		}
		if !ok {
			t.Errorf("%s: %d %s", name, got.status, short(got.text))
		}
	}
	if more := resident(t, a.cmd.Process.Pid) - before; more > slow*256<<20 {
		t.Errorf("the bombs cost %d MiB of memory", more>>20)
	}
	is.Equal(a.ask("uma", "GET", "/jobs", "").body["jobs"], []any{}) // the server accepted none of the bodies
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// This test sends requests that no HTTP library would send. The pod must refuse each of them and reveal nothing that requires a permission.
func TestAttackHeadersAndPaths(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	host := strings.TrimPrefix(a.HTTP, "http://")
	raw := func(text string) (status int, body string) {
		t.Helper()
		conn, err := net.Dial("tcp", host)
		is.NoErr(err)
		defer conn.Close()
		is.NoErr(conn.SetDeadline(time.Now().Add(20 * time.Second)))
		_, _ = conn.Write([]byte(text)) // the pod may close the connection before it has read everything
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, "" // the pod closed the connection without a response
		}
		defer response.Body.Close()
		got, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		return response.StatusCode, string(got)
	}
	vic := "Host: " + host + "\r\nAuthorization: Bearer vic-0123456789-0123456789\r\nConnection: close\r\n"
	for name, request := range map[string]string{
		"a large header":         "GET /jobs HTTP/1.1\r\n" + vic + "X-Large: " + strings.Repeat("x", 128<<10) + "\r\n\r\n",
		"many headers":           "GET /jobs HTTP/1.1\r\n" + vic + strings.Repeat("X-Many: x\r\n", 20_000) + "\r\n",
		"a long path":            "GET /" + strings.Repeat("x", 128<<10) + " HTTP/1.1\r\n" + vic + "\r\n",
		"a NUL in a header":      "GET /jobs HTTP/1.1\r\n" + vic + "X-Reason: a\x00b\r\n\r\n",
		"a folded header":        "GET /jobs HTTP/1.1\r\n" + vic + " X: y\r\nX Y: z\r\n\r\n",
		"no host":                "GET /jobs HTTP/1.1\r\nAuthorization: Bearer vic-0123456789-0123456789\r\n\r\n",
		"two hosts":              "GET /jobs HTTP/1.1\r\nHost: evil.example\r\n" + vic + "\r\n",
		"two lengths":            "POST /jobs HTTP/1.1\r\n" + vic + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
		"a length and chunks":    "POST /jobs HTTP/1.1\r\n" + vic + "Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /admin/roles HTTP/1.1\r\n\r\n",
		"a negative length":      "POST /jobs HTTP/1.1\r\n" + vic + "Content-Length: -1\r\n\r\n",
		"two authorizations":     "GET /jobs HTTP/1.1\r\n" + vic + "Authorization: Bearer root-0123456789-0123456789\r\n\r\n",
		"an unknown version":     "GET /jobs HTTP/9.9\r\n" + vic + "\r\n",
		"no method":              " /jobs HTTP/1.1\r\n" + vic + "\r\n",
		"not HTTP":               "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"a tunnel":               "CONNECT evil.example:443 HTTP/1.1\r\n" + vic + "\r\n",
		"a trace":                "TRACE /jobs HTTP/1.1\r\n" + vic + "\r\n",
		"another method":         "PROPFIND /jobs HTTP/1.1\r\n" + vic + "\r\n",
		"a method of lower case": "get /jobs HTTP/1.1\r\n" + vic + "\r\n",
	} {
		if status, body := raw(request + strings.Repeat("\r\n", 2)); status != 0 && (status < 400 || status > 505 || status == 500) || strings.Contains(body, `"jobs"`) {
			t.Errorf("%s: %d %s", name, status, short(body))
		}
	}
	for _, path := range []string{"/jobs/../admin/roles", "//admin/roles", "/./admin/roles", "/%2e%2e/admin/roles", "/ui/../admin/roles", "/ui/..%2fadmin/roles", "/ui/static/../../admin/roles",
		"/admin%2froles", "/ADMIN/ROLES", "/admin/roles/", "/admin/roles%00", "/admin/roles;x", "/admin/roles%20", "/healthz/../admin/roles", "/healthz%2f..%2fadmin/roles", "/admin/roles?",
		`/admin\roles`, "/admin/%72oles", "http://" + host + "/admin/roles", "/ui/static/../../../../etc/passwd", "/ui/static/..%2f..%2f..%2fetc%2fpasswd", "/ui/static/%2e%2e/ui.go", "/ui/static/",
		"/ui/templates/layout.html", "/debug/pprof/", "/.git/config", "/.env"} {
		for _, who := range []string{"", vic} {
			if who == "" {
				who = "Host: " + host + "\r\nConnection: close\r\n"
			}
			status, body := raw("GET " + path + " HTTP/1.1\r\n" + who + "\r\n")
			succeeded(t, path, map[string]bool{
				"a success or a server error": status < 300 || status >= 500,
				"it shows a role":             strings.Contains(body, "platform_admin"),
				"it shows a file":             strings.Contains(body, "root:") || strings.Contains(body, "{{") || strings.Contains(body, "package "),
			})
		}
	}
	is.Equal(a.ask("vic", "GET", "/jobs", "").status, http.StatusOK)
	for _, header := range [][2]string{{"X-Request-Id", "a\tb<script>"}, {"X-Reason", strings.Repeat("r", 60_000)}, {"Last-Event-ID", "' or 1=1"}, {"Idempotency-Key", strings.Repeat("k", 60_000)},
		{"X-Forwarded-For", strings.Repeat("1.1.1.1,", 7_000)}, {"Accept", strings.Repeat("text/html,", 6_000)}, {"Cookie", strings.Repeat("a=b;", 15_000)}, {"Range", "bytes=0-0," + strings.Repeat("1-1,", 10_000)}} {
		for _, request := range [][2]string{{"GET", "/jobs"}, {"POST", "/jobs"}, {"GET", "/jobs/1/stream"}, {"GET", "/ui/static/app.js"}} {
			if got := a.ask("uma", request[0], request[1], "", header[0], header[1]); got.status >= 500 {
				t.Errorf("%v with %s: %d %s", request, header[0], got.status, short(got.text))
			}
		}
	}
}
