package api_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/runner"
)

const secretOfIssuer = "a secret of more than thirty-two bytes"

// signing returns options that trust an identity provider, and a function that creates its tokens.
func signing(t *testing.T) (api.Options, func(name string, change ...any) string) {
	t.Helper()
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "keys.json")
	is.NoErr(os.WriteFile(path, []byte(`{"issuer":"i","audience":"a","keys":[{"kid":"1","alg":"HS256","key":"`+secretOfIssuer+`"}]}`), 0o600))
	keys, err := api.KeysFile(path)
	is.NoErr(err)
	return api.Options{Authenticate: keys.Authenticate, Login: keys.Login}, func(name string, change ...any) string {
		claims := jwt.MapClaims{"iss": "i", "aud": "a", "sub": name, "roles": []string{"operator"}, "exp": time.Now().Add(time.Hour).Unix()}
		for i := 0; i < len(change); i += 2 {
			claims[change[i].(string)] = change[i+1]
		}
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secretOfIssuer))
		is.NoErr(err)
		return token
	}
}

// trail returns the audit entries for an action, newest first.
func (h *host) trail(action string) []admin.AuditRow {
	h.t.Helper()
	rows, err := admin.AuditTrail(h.t.Context(), inside.Of(h.Runner).Store, admin.AuditFilter{Action: action})
	if err != nil {
		h.t.Fatal(err)
	}
	return rows
}

// signIn posts a token to the login page and returns the response.
func (h *host) signIn(token string, header ...string) answer {
	h.t.Helper()
	return h.send("POST", "/ui/login", url.Values{"token": {token}}.Encode(), append(header, "Content-Type", "application/x-www-form-urlencoded")...)
}

// This test does not run in parallel, because it replaces the default logger.
func TestRefusedJWTLogEntry(t *testing.T) {
	is := is.New(t)
	var log podtest.Log
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	o, token := signing(t)
	h := newIdleHost(t, o)
	expired := token("ana", "exp", time.Now().Add(-time.Hour).Unix())
	is.Equal(h.signIn(expired).status, http.StatusUnauthorized)
	is.True(strings.Contains(log.String(), "token is expired")) // the reason for a refused sign-in
	is.True(strings.Contains(log.String(), "path=/trapeze/ui/login"))
	other := token("ana", "aud", "another application")
	is.Equal(h.send("GET", "/jobs", "", "Authorization", "Bearer "+other).status, http.StatusUnauthorized)
	is.True(strings.Contains(log.String(), `another application`))
	for _, one := range []string{expired, other} {
		for part := range strings.SplitSeq(one, ".") {
			is.True(!strings.Contains(log.String(), part)) // no part of a token is logged
		}
	}
}

func TestSignInAudit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	is.Equal(h.signIn("wrong-0123456789-0123456789").status, http.StatusUnauthorized)
	is.Equal(len(h.trail("session.start")), 0)
	is.Equal(h.signIn(anasToken, "X-Request-Id", "r-1").status, http.StatusNoContent)
	rows := h.trail("session.start")
	is.Equal(len(rows), 1)
	is.Equal([]any{rows[0].Actor, rows[0].Source, rows[0].RequestID, rows[0].Allowed}, []any{"ana", "127.0.0.1", "r-1", true})
	is.True(strings.Contains(string(rows[0].After), "until"))
	_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `alter table `+inside.Of(h.Runner).Store.Schema()+`.audit add constraint full_up check (action <> 'session.start') not valid`)
	is.NoErr(err)
	refused := h.signIn(anasToken)
	is.Equal(refused.status, http.StatusInternalServerError) // a sign-in that cannot be recorded is refused
	is.Equal(refused.header.Get("Set-Cookie"), "")
}

func TestSignOutAudit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	is.Equal(h.send("POST", "/ui/logout", "", "Sec-Fetch-Site", "same-origin").status, http.StatusNoContent) // nobody was signed in
	is.Equal(len(h.trail("session.end")), 0)
	session := cookie(t, h.signIn(anasToken))
	out := func() answer {
		return h.send("POST", "/ui/logout", "", "Cookie", session.Name+"="+session.Value, "Sec-Fetch-Site", "same-origin")
	}
	is.Equal(out().status, http.StatusNoContent)
	rows := h.trail("session.end")
	is.Equal(len(rows), 1)
	is.Equal([]any{rows[0].Actor, rows[0].Source, rows[0].Allowed}, []any{"ana", "127.0.0.1", true})
	_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `alter table `+inside.Of(h.Runner).Store.Schema()+`.audit add constraint full_up check (action <> 'session.end') not valid`)
	is.NoErr(err)
	unrecorded := out()
	is.Equal(unrecorded.status, http.StatusInternalServerError)
	is.Equal(cookie(t, unrecorded).Value, "") // the browser is signed out nevertheless
}

func TestFullExportsInAuditLog(t *testing.T) { // not parallel, because a process allows only two concurrent exports
	is := is.New(t)
	h := guarded(t, api.Options{})
	for _, what := range []string{"jobs", "events"} {
		is.Equal(h.send("GET", "/admin/export/"+what, "", "Authorization", "Bearer "+vicsToken).status, http.StatusOK)
		rows := h.trail("export." + what)
		is.Equal(len(rows), 1)
		is.Equal([]any{rows[0].Actor, rows[0].Target, rows[0].Allowed}, []any{"vic", what, true})
	}
	_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `alter table `+inside.Of(h.Runner).Store.Schema()+`.audit add constraint full_up check (action not like 'export.%') not valid`)
	is.NoErr(err)
	is.Equal(h.send("GET", "/admin/export/jobs", "", "Authorization", "Bearer "+vicsToken).status, http.StatusInternalServerError)
}

// TestFirstWrongTokenAudited checks the first entry. TestWrongTokenAuditCounts checks the later ones.
func TestFirstWrongTokenAudited(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{})
	h.send("GET", "/jobs", "") // a request without credentials is not counted
	is.Equal(len(h.trail("authenticate")), 0)
	for range 30 {
		h.send("GET", "/jobs", "", "Authorization", "Bearer wrong-0123456789-0123456789")
		h.signIn("wrong-0123456789-0123456789")
	}
	rows := h.trail("authenticate")
	is.Equal(len(rows), 1) // the entry for the next minute covers the other 59
	is.Equal([]any{rows[0].Actor, rows[0].Allowed, string(rows[0].After)}, []any{"anonymous", false, `{"requests":1,"from":{"127.0.0.1":1}}`})
}

func TestReservedJWTSubjects(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	o, token := signing(t)
	h := newIdleHost(t, o)
	for _, name := range []string{"anonymous", "api", "system", "handler"} {
		is.Equal(h.signIn(token(name)).status, http.StatusUnauthorized)
		is.Equal(h.send("GET", "/jobs", "", "Authorization", "Bearer "+token(name)).status, http.StatusUnauthorized)
	}
	is.Equal(h.signIn(token("ana")).status, http.StatusNoContent)
	is.Equal(len(h.trail("session.start")), 1)
}

// cookie returns the session cookie that a sign-in sets.
func cookie(t *testing.T, a answer) *http.Cookie {
	t.Helper()
	list := (&http.Response{Header: a.header}).Cookies()
	if len(list) != 1 {
		t.Fatalf("the sign-in set %d cookies: %s", len(list), a.text)
	}
	return list[0]
}

func TestTwoDashboardsOnSharedHost(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	one, other := guarded(t, api.Options{}), guarded(t, api.Options{})
	first, second := cookie(t, one.signIn(anasToken)), cookie(t, other.signIn(vicsToken))
	is.True(first.Name != second.Name) // with equal names, a browser would replace one cookie with the other
	is.Equal([]any{first.Path, first.HttpOnly, first.SameSite}, []any{"/trapeze", true, http.SameSiteStrictMode})
	both := first.Name + "=" + first.Value + "; theme=dark; " + second.Name + "=" + second.Value // browsers send a cookie to all ports of a host
	page := one.send("GET", "/ui/jobs", "", "Cookie", both)
	is.Equal(page.status, http.StatusOK)
	is.True(strings.Contains(page.text, "ana"))
	page = other.send("GET", "/ui/jobs", "", "Cookie", both)
	is.Equal(page.status, http.StatusOK)
	is.True(strings.Contains(page.text, "vic"))
	is.Equal(one.send("GET", "/jobs", "", "Cookie", "trapeze_session="+first.Value).status, http.StatusUnauthorized) // only the cookie with this server's name counts
	is.Equal(one.send("POST", "/jobs", `{"kind":"echo"}`, "Cookie", both).status, http.StatusForbidden)              // a request with a session, but without an Origin header
	is.Equal(one.send("POST", "/jobs", `{"kind":"echo"}`, "Cookie", both, "Sec-Fetch-Site", "same-origin").status, http.StatusAccepted)
	out := cookie(t, one.send("POST", "/ui/logout", "", "Cookie", both, "Sec-Fetch-Site", "same-origin"))
	is.Equal(out.Name, first.Name)
	is.True(out.Expires.Before(time.Now()))
}

// secureHost serves an API over TLS, at the root and below a prefix.
func secureHost(t *testing.T, o api.Options) (root, below http.Handler) {
	t.Helper()
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.New(t).NoErr(err)
	t.Cleanup(r.Close)
	o.Authenticate, o.Login = authenticateAs("ana", "operator"), func(token string) (string, time.Time, error) { return token, time.Now().Add(time.Hour), nil }
	root = api.Handler(r, o)
	return root, http.StripPrefix("/trapeze", root)
}

func TestSessionCookieUnderTLS(t *testing.T) {
	t.Parallel()
	root, below := secureHost(t, api.Options{})
	for name, c := range map[string]struct {
		at   http.Handler
		url  string
		want http.Cookie
	}{
		"plain":         {root, "http://jobs.example/ui/login", http.Cookie{Name: "trapeze_session", Path: "/"}},
		"plain, a port": {root, "http://jobs.example:8080/ui/login", http.Cookie{Name: "trapeze_session_8080", Path: "/"}},
		"TLS":           {root, "https://jobs.example/ui/login", http.Cookie{Name: "__Host-trapeze_session", Path: "/", Secure: true}},
		"TLS, a port":   {root, "https://[::1]:8443/ui/login", http.Cookie{Name: "__Host-trapeze_session_8443", Path: "/", Secure: true}},
		"TLS, a prefix": {below, "https://jobs.example/trapeze/ui/login", http.Cookie{Name: "__Secure-trapeze_session", Path: "/trapeze", Secure: true}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			request := httptest.NewRequest("POST", c.url, strings.NewReader("token=t"))
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			request.Header.Set("Sec-Fetch-Site", "same-origin")
			w := httptest.NewRecorder()
			c.at.ServeHTTP(w, request)
			is.Equal(w.Code, http.StatusNoContent)
			got := w.Result().Cookies()[0]
			is.Equal([]any{got.Name, got.Path, got.Secure, got.Domain}, []any{c.want.Name, c.want.Path, c.want.Secure, ""})
		})
	}
}

// Another host in the same domain, or an attacker on an unencrypted connection, can set a cookie without the prefix, but not one with it.
func TestHostOnlyCookieUnderTLS(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	door := api.Handler(r, api.Options{Authenticate: func(request *http.Request) (api.Principal, error) {
		if one, err := request.Cookie("trapeze_session"); err == nil && one.Value == "s" {
			return api.Principal{Name: "ana", Roles: []string{"operator"}}, nil
		}
		return api.Principal{}, api.ErrUnauthenticated
	}})
	status := func(cookie string) int {
		request := httptest.NewRequest("GET", "https://jobs.example/jobs", nil)
		request.Header.Set("Cookie", cookie)
		w := httptest.NewRecorder()
		door.ServeHTTP(w, request)
		return w.Code
	}
	is.Equal(status("__Host-trapeze_session=s"), http.StatusOK)
	is.Equal(status("trapeze_session=x; __Host-trapeze_session=s"), http.StatusOK)
	for _, planted := range []string{"trapeze_session=s", "__Secure-trapeze_session=s", "__Host-trapeze_session_8443=s"} {
		is.Equal(status(planted), http.StatusUnauthorized)
	}
}

func TestHSTSUnderTLS(t *testing.T) {
	t.Parallel()
	trusted, err := api.TrustedProxies([]string{"192.0.2.1"})
	is.New(t).NoErr(err)
	root, _ := secureHost(t, api.Options{HSTS: true, TrustedProxies: trusted})
	without, _ := secureHost(t, api.Options{})
	for name, c := range map[string]struct {
		at        http.Handler
		url, from string
		proto     string
		sent      bool
	}{
		"TLS":                         {root, "https://jobs.example/jobs", "10.0.0.1:1", "", true},
		"an error over TLS":           {root, "https://jobs.example/jobs/x", "10.0.0.1:1", "", true},
		"a page over TLS":             {root, "https://jobs.example:8443/ui/", "10.0.0.1:1", "", true},
		"TLS at a trusted proxy":      {root, "http://jobs.example/jobs", "192.0.2.1:1", "https", true},
		"plain":                       {root, "http://jobs.example/jobs", "10.0.0.1:1", "", false},
		"a header without a proxy":    {root, "http://jobs.example/jobs", "10.0.0.1:1", "https", false},
		"a loopback name":             {root, "https://localhost:8443/jobs", "127.0.0.1:1", "", false},
		"a host that did not want it": {without, "https://jobs.example/jobs", "10.0.0.1:1", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			request := httptest.NewRequest("GET", c.url, nil)
			request.RemoteAddr = c.from
			request.Header.Set("X-Forwarded-Proto", c.proto)
			w := httptest.NewRecorder()
			c.at.ServeHTTP(w, request)
			_, _ = io.Copy(io.Discard, w.Body)
			is.Equal(strings.HasPrefix(w.Header().Get("Strict-Transport-Security"), "max-age="), c.sent)
		})
	}
}

// An attacker on an unencrypted connection can serve a page under the same host name, and the browser sends the session with that page's
// requests.
func TestInsecurePageRequestUnderTLS(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	root, _ := secureHost(t, api.Options{})
	status := func(url, origin string) int {
		request := httptest.NewRequest("POST", url, nil)
		request.Header.Set("Origin", origin)
		w := httptest.NewRecorder()
		root.ServeHTTP(w, request)
		return w.Code
	}
	is.Equal(status("https://jobs.example/admin/workers/unfreeze", "http://jobs.example"), http.StatusForbidden)
	is.Equal(status("https://jobs.example/admin/workers/unfreeze", "https://jobs.example"), http.StatusOK)
	is.Equal(status("http://jobs.example/admin/workers/unfreeze", "http://jobs.example"), http.StatusOK)
	is.Equal(status("http://jobs.example/admin/workers/unfreeze", "https://jobs.example"), http.StatusOK) // TLS ends at an untrusted proxy
}
