package api_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestUnauthenticatedFlood(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{ChangesPerSecond: 0.001, ChangesBurst: 5})
	wrong := []string{"Authorization", "Bearer wrong-0123456789-0123456789"}
	count := map[int]int{}
	for n := range 30 {
		header := wrong
		if n%3 == 0 {
			header = nil
		}
		a := h.send([]string{"GET", "POST"}[n%2], "/jobs", "", header...)
		count[a.status]++
		if a.status == http.StatusTooManyRequests {
			is.True(a.header.Get("Retry-After") != "")
		}
	}
	is.Equal(count, map[int]int{http.StatusUnauthorized: 5, http.StatusTooManyRequests: 25})                         // reads count too
	is.Equal(h.send("GET", "/ui/jobs", "", append(wrong, "Accept", "text/html")...).status, http.StatusUnauthorized) // pages are not limited, because they lead to the login

	ana := []string{"Authorization", "Bearer " + anasToken}
	is.Equal(h.send("GET", "/jobs", "", ana...).status, http.StatusOK) // a valid token sent from the same address still works
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo"}`, ana...).status, http.StatusAccepted)

	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	last := 0
	for range 40 {
		last = h.send("POST", "/ui/login", "token=wrong", form...).status
	}
	is.Equal(last, http.StatusTooManyRequests)
	is.Equal(h.send("POST", "/ui/login", "token="+anasToken, form...).status, http.StatusNoContent)

	shown := h.send("GET", "/metrics", "").text
	is.True(regexp.MustCompile(`trapeze_api_unauthenticated_total\{credentials="none"\} 10\b`).MatchString(shown))
	is.True(regexp.MustCompile(`trapeze_api_unauthenticated_total\{credentials="wrong"\} 21\b`).MatchString(shown))
}

// This test does not run in parallel, because it replaces the default logger.
func TestWrongTokenLogFlood(t *testing.T) {
	is := is.New(t)
	var log podtest.Log
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	door := api.Handler(r, api.Options{Authenticate: byName(nil)})
	for range 200 {
		request := httptest.NewRequest("GET", "/jobs", nil)
		request.Header.Set("Authorization", "Bearer secret-0123456789-0123456789")
		answer := httptest.NewRecorder()
		door.ServeHTTP(answer, request)
		is.Equal(answer.Code, http.StatusUnauthorized)
	}
	door.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/jobs", nil)) // a request without credentials is not logged
	lines := strings.Count(log.String(), "authentication failed")
	is.True(lines >= 10 && lines < 100)
	is.True(strings.Contains(log.String(), "source=192.0.2.1"))
	is.True(!strings.Contains(log.String(), "secret-")) // tokens are not logged
}

// A flood of requests from ever-changing addresses uses a bounded amount of memory.
func TestStrangersFromManyAddresses(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	door := api.Handler(r, api.Options{Authenticate: byName(map[string][]string{"ana": {"operator"}}), ChangesPerSecond: 0.001, ChangesBurst: 2})
	status := func(n int, who string) int {
		request := httptest.NewRequest("GET", "/jobs", nil)
		request.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", n>>16, n>>8&255, n&255)
		request.Header.Set("X-Who", who)
		answer := httptest.NewRecorder()
		door.ServeHTTP(answer, request)
		return answer.Code
	}
	limited := 0
	for n := range 10_100 {
		if status(n, "") == http.StatusTooManyRequests {
			limited++
		}
	}
	is.Equal(limited, 98) // beyond 10,000 addresses, the remaining ones share one bucket
	is.Equal(status(20_000, "ana"), http.StatusOK)
}

func TestLoopbackPodProxyHostNames(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{LoopbackOnly: true, Hosts: []string{"jobs.example"}})
	is.Equal(h.send("GET", "/jobs", "", "Host", "jobs.example").status, http.StatusOK)
	is.Equal(h.send("GET", "/jobs", "", "Host", "jobs.example:8443").status, http.StatusOK)
	is.Equal(h.send("GET", "/jobs", "", "Host", "evil.example").status, http.StatusForbidden)
	is.Equal(h.send("GET", "/jobs", "").status, http.StatusOK)
}

func TestLoginWithJSONBody(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := guarded(t, api.Options{ChangesPerSecond: 0.001, ChangesBurst: 2})
	for _, media := range []string{"application/json", "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded;;", ""} {
		for range 3 {
			got := h.send("POST", "/ui/login", `{"token":"`+anasToken+`"}`, "Content-Type", media)
			is.Equal(got.status, http.StatusUnsupportedMediaType) // in each format
			is.True(strings.Contains(got.text, "send Content-Type: application/x-www-form-urlencoded"))
		}
	}
	shown := h.send("GET", "/metrics", "").text
	is.True(!regexp.MustCompile(`trapeze_api_unauthenticated_total\{credentials="wrong"\} [1-9]`).MatchString(shown))
	is.Equal(h.send("POST", "/ui/login", "token=wrong", "Content-Type", "application/x-www-form-urlencoded").status, http.StatusUnauthorized)
}
