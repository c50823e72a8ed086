package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Browsers also send a cookie over plain HTTP if it lacks the Secure attribute. Behind a proxy that terminates TLS, the pod sees only plain
// HTTP.
func TestSecureSessionCookieBehindProxy(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	trusted, err := api.TrustedProxies([]string{"192.0.2.1"})
	is.NoErr(err)
	door := api.Handler(r, api.Options{Authenticate: authenticateAs("ana", "operator"), TrustedProxies: trusted, Login: func(token string) (string, time.Time, error) {
		return "session of " + token, time.Now().Add(time.Hour), nil
	}})
	login := func(from, scheme string) *http.Cookie {
		t.Helper()
		request := httptest.NewRequest("POST", "http://pod/ui/login", strings.NewReader("token=t"))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Sec-Fetch-Site", "same-origin")
		request.RemoteAddr = from + ":1234"
		if scheme != "" {
			request.Header.Set("X-Forwarded-Proto", scheme)
		}
		w := httptest.NewRecorder()
		door.ServeHTTP(w, request)
		cookies := w.Result().Cookies()
		if len(cookies) != 1 {
			t.Fatalf("login: status %d, %d cookies", w.Code, len(cookies))
		}
		return cookies[0]
	}
	is.True(login("192.0.2.1", "https").Secure)
	is.True(!login("192.0.2.1", "http").Secure)
	is.True(!login("192.0.2.1", "").Secure)
	is.True(!login("192.0.2.2", "https").Secure) // otherwise an untrusted header could keep the browser from sending the cookie over plain HTTP
}

func TestLoginWithoutAuditGrant(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	_, without := pgtest.Role(t, pgtest.URL(t)) // a role without any permissions
	r, err := runner.New(pgtest.Connect(t, without), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	door := api.Handler(r, api.Options{Authenticate: authenticateAs("ana", "operator"), Login: func(token string) (string, time.Time, error) {
		return "session", time.Now().Add(time.Hour), nil
	}})
	request := httptest.NewRequest("POST", "http://pod/ui/login", strings.NewReader("token=t"))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	door.ServeHTTP(w, request)
	is.Equal(w.Code, http.StatusInternalServerError) // trying again would not help
	is.True(strings.Contains(w.Body.String(), "could not be recorded in the audit log"))
	is.True(strings.Contains(w.Body.String(), "lacks a permission"))
	is.True(strings.Contains(w.Body.String(), "docs/grants.md"))
	is.Equal(len(w.Result().Cookies()), 0)
}
