package main

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const token = "a-token-of-twenty-characters"

// host is a running service with Trapeze mounted in it, together with an HTTP client that acts as a browser.
type host struct {
	t       *testing.T
	url     string
	browser *http.Client
}

func newHost(t *testing.T, mount func(*runner.Runner, api.Options) http.Handler) host {
	t.Helper()
	is := is.New(t)
	file := filepath.Join(t.TempDir(), "tokens.json")
	is.NoErr(os.WriteFile(file, []byte(`{"tokens":[{"token":"`+token+`","name":"ana","roles":["operator"]}]}`), 0o600))
	tokens, err := api.TokenFile(file)
	is.NoErr(err)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	t.Cleanup(r.Close)
	runner.HandleRaw(r, "echo", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	server := httptest.NewServer(mount(r, api.Options{Authenticate: tokens.Authenticate, Login: tokens.Login}))
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	is.NoErr(err)
	return host{t, server.URL, &http.Client{Jar: jar}}
}

// send sends a request, follows redirects, and returns the final response and its path.
func (h host) send(method, path, body string, headers ...string) (status int, text, at string) {
	h.t.Helper()
	is := is.New(h.t)
	request, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, strings.NewReader(body))
	is.NoErr(err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := h.browser.Do(request)
	is.NoErr(err)
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	is.NoErr(err)
	return answer.StatusCode, string(raw), answer.Request.URL.Path
}

func TestRoutersWithPrefix(t *testing.T) {
	for name, mount := range routers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			h := newHost(t, mount)
			status, text, _ := h.send("GET", "/hello", "")
			is.Equal(status, http.StatusOK)
			is.Equal(text, "hello\n") // the service's own routes work
			status, _, _ = h.send("GET", "/jobs", "")
			is.Equal(status, http.StatusNotFound) // Trapeze is served only under the prefix

			// An API call needs authentication.
			const json = "application/json"
			status, _, _ = h.send("POST", "/trapeze/jobs", `{"kind":"echo"}`, "Content-Type", json)
			is.Equal(status, http.StatusUnauthorized)
			status, text, _ = h.send("POST", "/trapeze/jobs", `{"kind":"echo"}`, "Content-Type", json, "Authorization", "Bearer "+token)
			is.Equal(status, http.StatusAccepted)
			is.True(strings.Contains(text, `"id"`))

			// A browser is shown the sign-in form, and signing in leads to the dashboard.
			const page = "text/html"
			status, text, _ = h.send("GET", "/trapeze/ui/jobs", "", "Accept", page)
			is.Equal(status, http.StatusUnauthorized)
			action := regexp.MustCompile(`<form[^>]* action="([^"]+)"`).FindStringSubmatch(text)
			is.Equal(len(action), 2)
			form := url.Values{"token": {token}}.Encode()
			status, text, at := h.send("POST", path.Join("/trapeze/ui", action[1]), form,
				"Accept", page, "Content-Type", "application/x-www-form-urlencoded", "Origin", h.url)
			is.Equal(at, "/trapeze/ui/")
			is.Equal(status, http.StatusOK)
			is.True(strings.Contains(text, "ana")) // the cookie identifies the user
			status, text, _ = h.send("GET", "/trapeze/ui/jobs", "", "Accept", page)
			is.Equal(status, http.StatusOK)
			is.True(strings.Contains(text, "echo")) // the job that the API call submitted
			status, _, _ = h.send("GET", "/trapeze/ui/static/app.js", "")
			is.Equal(status, http.StatusOK)
			at1, err := url.Parse(h.url + "/hello")
			is.NoErr(err)
			is.Equal(len(h.browser.Jar.Cookies(at1)), 0) // the browser sends the session cookie only under the prefix
		})
	}
}

func TestMountedServiceEnvironment(t *testing.T) {
	is := is.New(t)
	for name, value := range map[string]string{"TRAPEZE_SLOTS": "none", "TRAPEZE_AUTH": "maybe"} {
		t.Setenv(name, value)
	}
	err := serve(t.Context(), "")
	is.True(err != nil)
	is.True(strings.Contains(err.Error(), "TRAPEZE_SLOTS") && strings.Contains(err.Error(), "TRAPEZE_AUTH")) // all errors are reported together

	t.Setenv("DATABASE_URL", pgtest.EmptyURL(t))
	t.Setenv("TRAPEZE_SLOTS", "1")
	t.Setenv("TRAPEZE_AUTH", "none")
	at := httptest.NewServer(nil) // used to find a free port
	t.Setenv("TRAPEZE_HTTP_ADDR", at.Listener.Addr().String())
	at.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, "echo") }()
	pgtest.Wait(t, "the pod is ready", func() bool {
		answer, err := http.Get(at.URL + "/trapeze/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	stop()
	is.NoErr(<-ended)
}

// signedIn stands in for the host service's existing session mechanism.
func signedIn(request *http.Request) (user string, ok bool) {
	cookie, err := request.Cookie("host_session")
	if err != nil {
		return "", false
	}
	return cookie.Value, true
}

func TestDashboardWithHostSession(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	options := api.Options{Authenticate: func(request *http.Request) (api.Principal, error) {
		user, ok := signedIn(request) // authenticated by the host's own session
		if !ok {
			return api.Principal{}, api.ErrUnauthenticated
		}
		return api.Principal{Name: user, Roles: []string{"operator"}}, nil
	}}
	h := newHost(t, func(r *runner.Runner, _ api.Options) http.Handler { return inMux(r, options) })
	status, _, _ := h.send("GET", "/trapeze/ui/", "", "Accept", "text/html")
	is.Equal(status, http.StatusUnauthorized)
	status, text, _ := h.send("GET", "/trapeze/ui/", "", "Accept", "text/html", "Cookie", "host_session=bo")
	is.Equal(status, http.StatusOK)
	is.True(strings.Contains(text, "bo"))
	json := []string{"Content-Type", "application/json", "Cookie", "host_session=bo"}
	status, _, _ = h.send("POST", "/trapeze/jobs", `{"kind":"echo"}`, append(json, "Origin", "https://evil.example")...)
	is.Equal(status, http.StatusForbidden) // the request comes from a page with a different origin
	status, _, _ = h.send("POST", "/trapeze/jobs", `{"kind":"echo"}`, append(json, "Origin", h.url)...)
	is.Equal(status, http.StatusAccepted)
}
