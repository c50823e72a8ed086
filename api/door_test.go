package api_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/runner"
)

const (
	anasToken = "ana-0123456789-0123456789"
	vicsToken = "vic-0123456789-0123456789"
)

// guarded returns an idle host with a token file that has two principals: ana, an operator, and vic, a viewer.
func guarded(t *testing.T, o api.Options) *host {
	t.Helper()
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "tokens.json")
	is.NoErr(os.WriteFile(path, []byte(`{"tokens":[{"token":"`+anasToken+`","name":"ana","roles":["operator"]},
		{"token":"`+vicsToken+`","name":"vic","roles":["viewer"]}]}`), 0o600))
	tokens, err := api.TokenFile(path)
	is.NoErr(err)
	o.Authenticate, o.Login = tokens.Authenticate, tokens.Login
	return newIdleHost(t, o)
}

func TestMountWithoutAuthentication(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Unconnected(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	defer func() { is.True(recover() != nil) }() // Mount panics without authentication
	api.Mount(echo.New().Group(""), r, api.Options{})
}

func TestAnonymousRequestChallenge(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	for _, header := range [][]string{nil, {"Authorization", "Bearer wrong-0123456789-0123456789"}, {"Authorization", "Basic x"}} {
		a := h.send("POST", "/jobs", strings.Repeat("x", 1<<20), header...)
		is.Equal(a.status, http.StatusUnauthorized) // rejected before the body is read
		is.Equal(a.body["code"], "unauthenticated")
		is.True(strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer"))
		is.Equal(h.send("GET", "/jobs", "", header...).status, http.StatusUnauthorized)
	}
	is.Equal(h.send("GET", "/healthz", "").status, http.StatusOK) // this route needs no authentication
	a := h.send("POST", "/jobs", `{"kind":"echo"}`, "Authorization", "Bearer "+vicsToken)
	is.Equal(a.status, http.StatusForbidden)
	is.Equal(a.body["code"], "forbidden")
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, "Authorization", "Bearer "+anasToken).status, http.StatusAccepted)
}

func TestAuditOfManyRefusedChanges(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	h.send("GET", "/jobs", "") // rejected reads are not recorded
	for range 3 {
		h.send("POST", "/jobs/7/cancel", "", "Authorization", "Bearer "+vicsToken, "X-Request-Id", "r-7")
	}
	for range 200 {
		h.send("POST", "/jobs", "")
	}
	trail, err := admin.AuditTrail(t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Limit: 1000})
	is.NoErr(err)
	var vics, nobodys int
	for _, row := range trail {
		is.True(!row.Allowed)
		switch row.Actor {
		case "vic":
			vics++
			is.Equal(row.Action, "POST /jobs/:id/cancel")
			is.Equal(row.Target, "/trapeze/jobs/7/cancel")
			is.Equal(row.RequestID, "r-7")
			is.Equal(row.Source, "127.0.0.1")
			is.True(strings.Contains(row.Reason, "jobs:cancel")) // the missing permission
		case "anonymous":
			nobodys++
		}
	}
	is.Equal(vics, 3)                    // a small number of rejections is audited completely
	is.True(nobodys > 0 && nobodys < 90) // only part of a flood of rejections is audited
}

func TestChallengeWithOwnScheme(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	unknown := func(*http.Request) (api.Principal, error) { return api.Principal{}, api.ErrUnauthenticated }
	for challenge, h := range map[string]*host{
		`Bearer realm="trapeze"`: guarded(t, api.Options{}),
		`X-Forwarded-User`:       newIdleHost(t, api.Options{Authenticate: unknown, Challenge: "X-Forwarded-User"}),
	} {
		for _, path := range []string{"/jobs", "/ui/", "/ui/jobs"} {
			no := h.send("GET", path, "")
			is.Equal(no.status, http.StatusUnauthorized)
			is.Equal(no.header.Get("WWW-Authenticate"), challenge)
			is.Equal(strings.Contains(no.text, "send Authorization: Bearer"), path == "/jobs" && strings.HasPrefix(challenge, "Bearer"))
		}
	}
	wrong := guarded(t, api.Options{}).send("POST", "/ui/login", "token=wrong", "Content-Type", "application/x-www-form-urlencoded")
	is.Equal(wrong.status, http.StatusUnauthorized)
	is.Equal(wrong.header.Get("WWW-Authenticate"), `Bearer realm="trapeze"`)
}

func TestBrowserSession(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	next := ""
	login := func(token string, header ...string) *http.Response {
		form := url.Values{"token": {token}, "next": {next}}
		request, err := http.NewRequestWithContext(t.Context(), "POST", h.url+"/ui/login", strings.NewReader(form.Encode()))
		is.NoErr(err)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(header); i += 2 {
			request.Header.Set(header[i], header[i+1])
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		is.NoErr(err)
		response.Body.Close()
		return response
	}
	page := []string{"Accept", "text/html", "Origin", strings.TrimSuffix(h.url, "/trapeze")}
	no := login("wrong-0123456789-0123456789", page...)
	is.Equal(no.Header.Get("Location"), "login?failed=1")
	is.Equal(len(no.Cookies()), 0)
	is.Equal(login(anasToken, "Origin", "https://evil.example").StatusCode, http.StatusForbidden) // another site must not be able to log a browser in

	yes := login(anasToken, page...)
	is.Equal(yes.StatusCode, http.StatusSeeOther)
	is.Equal(yes.Header.Get("Location"), "./") // redirects to the first page
	for asked, want := range map[string]string{"jobs/7": "./jobs/7", "jobs?state=failed": "./jobs?state=failed", "//evil.example": "./",
		"https://evil.example": "./", `\\evil.example`: "./", "jobs/../../..": "./", "x\r\nSet-Cookie: a=b": "./"} {
		next = asked
		is.Equal(login(anasToken, page...).Header.Get("Location"), want) // redirects to the requested page, unless it is on another site
	}
	next = "jobs/7"
	is.Equal(login("wrong-0123456789-0123456789", page...).Header.Get("Location"), "login?failed=1&next=jobs%2F7")
	cookie := yes.Cookies()[0]
	is.True(cookie.HttpOnly && cookie.SameSite == http.SameSiteStrictMode && !cookie.Secure && cookie.Path == "/trapeze")
	with := []string{"Cookie", cookie.Name + "=" + cookie.Value}
	is.Equal(h.send("GET", "/jobs", "", with...).status, http.StatusOK)
	own := append(with, "Origin", strings.TrimSuffix(h.url, "/trapeze"))
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, own...).status, http.StatusAccepted)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, append(with, "Origin", "https://evil.example")...).status, http.StatusForbidden)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, append(with, "Sec-Fetch-Site", "cross-site")...).status, http.StatusForbidden)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, with...).status, http.StatusForbidden) // a browser would send an Origin header

	out := h.send("POST", "/ui/logout", "", own...)
	is.Equal(out.status, http.StatusNoContent)
	is.True(strings.Contains(out.header.Get("Set-Cookie"), "Expires=Thu, 01 Jan 1970")) // the browser deletes the cookie
}

func TestSecurityResponseHeaders(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	for _, path := range []string{"/jobs", "/healthz", "/metrics", "/jobs/abc", "/ui/login", "/ui/nowhere"} {
		a := h.send("GET", path, "")
		is.True(strings.HasPrefix(a.header.Get("Content-Security-Policy"), "default-src 'self';"))
		is.True(strings.Contains(a.header.Get("Content-Security-Policy"), "frame-ancestors 'none'"))
		is.True(!strings.Contains(a.header.Get("Content-Security-Policy"), "unsafe"))
		is.Equal(a.header.Get("X-Content-Type-Options"), "nosniff")
		is.Equal(a.header.Get("Referrer-Policy"), "same-origin")
		is.Equal(a.header.Get("Cache-Control"), "no-store")
	}
	c := echo.New().NewContext(httptest.NewRequest("GET", "/nowhere", nil), httptest.NewRecorder())
	api.HandleError(echo.ErrNotFound, c)
	is.Equal(c.Response().Header().Get("X-Content-Type-Options"), "nosniff") // set even for unknown paths
}

func TestChangeRateLimitRetryAfter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{ChangesPerSecond: 0.01, ChangesBurst: 3})
	for range 3 {
		is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, "Authorization", "Bearer "+anasToken).status, http.StatusAccepted)
	}
	a := h.send("POST", "/jobs", `{"kind":"echo"}`, "Authorization", "Bearer "+anasToken)
	is.Equal(a.status, http.StatusTooManyRequests)
	is.Equal(a.body["code"], "rate_limited")
	is.True(a.header.Get("Retry-After") != "" && a.header.Get("Retry-After") != "0")
	is.Equal(h.send("GET", "/jobs", "", "Authorization", "Bearer "+anasToken).status, http.StatusOK) // reads are not limited
}

func TestLoopbackAPIForeignHostHeader(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{LoopbackOnly: true})
	paths := []string{"/metrics", "/ui", "/ui/", "/ui/static/app.js"}
	for _, route := range api.Routes() {
		if route.Method == http.MethodGet {
			paths = append(paths, strings.NewReplacer(":id", "1", ":name", "default").Replace(route.Path))
		}
	}
	for _, path := range paths {
		is.Equal(h.send("GET", path, "", "Host", "evil.example").status, http.StatusForbidden) // the attacker's page would have this origin and could read the response
	}
	is.Equal(h.send("GET", "/metrics", "").status, http.StatusOK)
}

func TestLoopbackAPIFromOtherMachine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	door := api.Handler(r, api.Options{InsecureAllowAll: true, LoopbackOnly: true})
	for from, want := range map[string]int{"127.0.0.1:4000": http.StatusOK, "[::1]:4000": http.StatusOK, "@": http.StatusOK, "192.0.2.1:4000": http.StatusForbidden} {
		request, answer := httptest.NewRequest("GET", "http://localhost/jobs", nil), httptest.NewRecorder() // any client can send this Host header
		request.RemoteAddr = from
		door.ServeHTTP(answer, request)
		is.Equal(answer.Code, want)
	}
}

func TestDashboardPageInvalidParameters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	for _, path := range []string{"/ui/jobs?kind=%00", "/ui/jobs?subject=%ff", "/ui/pipelines?name=%00", "/ui/audit?actor=%ff", "/ui/jobs?cursor=x"} {
		is.Equal(h.send("GET", path, "", "Accept", "text/html").status, http.StatusBadRequest) // a client error, not a server error
	}
}

func TestAddressesSessionsUnderStrippedPrefix(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	runner.HandleRaw(r, "echo", never)
	door := http.StripPrefix("/ops", api.Handler(r, api.Options{Authenticate: authenticateAs("ana", "operator"), Login: func(token string) (string, time.Time, error) {
		if token != anasToken {
			return "", time.Time{}, api.ErrUnauthenticated
		}
		return "session", time.Now().Add(time.Hour), nil
	}}))
	send := func(path, media, body string) *httptest.ResponseRecorder {
		request, answer := httptest.NewRequest("POST", path, strings.NewReader(body)), httptest.NewRecorder()
		request.Header.Set("Content-Type", media)
		door.ServeHTTP(answer, request)
		return answer
	}
	made := send("/ops/jobs", "application/json", `{"kind":"echo"}`)
	is.Equal(made.Code, http.StatusAccepted)
	is.True(strings.HasPrefix(made.Header().Get("Location"), "/ops/jobs/"))
	const form = "application/x-www-form-urlencoded"
	in := send("/ops/ui/login", form, "token="+anasToken)
	is.Equal(in.Code, http.StatusNoContent)
	is.Equal(in.Result().Cookies()[0].Path, "/ops")                                          // the cookie applies only below the prefix
	is.Equal(send("/ops/ui/login?token="+anasToken, form, "").Code, http.StatusUnauthorized) // a token in a URL would end up in logs
}
