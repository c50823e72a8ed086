package api_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// plainWriter hides all optional methods of a response writer.
type plainWriter struct{ to http.ResponseWriter }

func (w plainWriter) Header() http.Header         { return w.to.Header() }
func (w plainWriter) Write(p []byte) (int, error) { return w.to.Write(p) }
func (w plainWriter) WriteHeader(status int)      { w.to.WriteHeader(status) }

// unwrappedWriter hides them, but has an Unwrap method.
type unwrappedWriter struct{ plainWriter }

func (w unwrappedWriter) Unwrap() http.ResponseWriter { return w.to }

// flusherWriter has a Flush method, but no Unwrap method.
type flusherWriter struct{ plainWriter }

func (w flusherWriter) Flush() { w.to.(http.Flusher).Flush() }

// onEcho returns a host set-up that mounts the API on an echo with the given middleware.
func onEcho(set ...func(*echo.Echo)) func(*runner.Runner, api.Options) http.Handler {
	return func(r *runner.Runner, o api.Options) http.Handler {
		e := echo.New()
		for _, one := range set {
			one(e)
		}
		api.Mount(e.Group("/trapeze"), r, o)
		return e
	}
}

// after returns middleware that echo calls after its router.
func afterMiddleware(m echo.MiddlewareFunc) func(*echo.Echo) { return func(e *echo.Echo) { e.Use(m) } }

// before returns middleware that echo calls before its router.
func before(m echo.MiddlewareFunc) func(*echo.Echo) { return func(e *echo.Echo) { e.Pre(m) } }

// behind returns a host set-up that wraps the handler of an echo.
func behind(wrap func(http.Handler) http.Handler) func(*runner.Runner, api.Options) http.Handler {
	return func(r *runner.Runner, o api.Options) http.Handler { return wrap(onEcho()(r, o)) }
}

// writer returns a host set-up that wraps each response writer.
func writer(wrap func(plainWriter) http.ResponseWriter) func(*runner.Runner, api.Options) http.Handler {
	return behind(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrap(plainWriter{w}), r) })
	})
}

const cannotStream = "cannot stream"

var hostSetups = []struct {
	name    string
	mount   func(*runner.Runner, api.Options) http.Handler
	refused string // part of the sentence that refuses a stream; empty if streams work
}{
	{"echo", onEcho(), ""},
	{"echo Gzip", onEcho(afterMiddleware(middleware.Gzip())), ""},
	{"echo BodyDump", onEcho(afterMiddleware(middleware.BodyDump(func(echo.Context, []byte, []byte) {}))), ""},
	{"echo Recover", onEcho(afterMiddleware(middleware.Recover())), ""},
	{"echo Gzip in TimeoutHandler", func(r *runner.Runner, o api.Options) http.Handler {
		return http.TimeoutHandler(onEcho(afterMiddleware(middleware.Gzip()))(r, o), 30*time.Second, "late")
	}, cannotStream},
	{"echo HTTPErrorHandler", onEcho(func(e *echo.Echo) {
		e.HTTPErrorHandler = func(_ error, c echo.Context) { _ = c.String(http.StatusTeapot, "error of the host") }
	}), ""},
	{"ServeMux with methods", func(r *runner.Runner, o api.Options) http.Handler {
		mux, h := http.NewServeMux(), http.StripPrefix("/trapeze", api.Handler(r, o))
		mux.Handle("GET /trapeze/", h)
		mux.Handle("POST /trapeze/", h)
		return mux
	}, ""},
	{"echo RemoveTrailingSlash", onEcho(before(middleware.RemoveTrailingSlash())), ""},
	{"echo RemoveTrailingSlash redirects", onEcho(before(middleware.RemoveTrailingSlashWithConfig(middleware.TrailingSlashConfig{RedirectCode: 301}))), ""},
	{"echo AddTrailingSlash skips", onEcho(before(middleware.AddTrailingSlashWithConfig(middleware.TrailingSlashConfig{
		Skipper: func(c echo.Context) bool { return strings.HasPrefix(c.Request().URL.Path, "/trapeze/") },
	}))), ""},
	{"StripPrefix", func(r *runner.Runner, o api.Options) http.Handler {
		return http.StripPrefix("/trapeze", api.Handler(r, o))
	}, ""},
	{"proxy that strips the prefix", func(r *runner.Runner, o api.Options) http.Handler {
		h := api.Handler(r, o)
		return http.StripPrefix("/trapeze", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RequestURI = r.URL.RequestURI() // as the pod receives it
			h.ServeHTTP(w, r)
		}))
	}, ""},
	{"TimeoutHandler", behind(func(next http.Handler) http.Handler { return http.TimeoutHandler(next, 30*time.Second, "late") }), cannotStream},
	{"writer with Unwrap", writer(func(w plainWriter) http.ResponseWriter { return unwrappedWriter{w} }), ""},
	{"writer with Flush", writer(func(w plainWriter) http.ResponseWriter { return flusherWriter{w} }), ""},
	{"writer without both", writer(func(w plainWriter) http.ResponseWriter { return w }), cannotStream},
}

// The dashboard, the API and streams work behind the middleware of a host, or the response names the middleware's effect and the remedy.
func TestHostMiddleware(t *testing.T) {
	t.Parallel()
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"wait"}`)
	o := api.Options{InsecureAllowAll: true, Streams: api.StreamOptions{KeepAlive: 1100 * time.Millisecond}}
	for _, setup := range hostSetups {
		t.Run(setup.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			web := httptest.NewUnstartedServer(setup.mount(h.Runner, o))
			web.Config.ConnContext, web.Config.WriteTimeout = api.ConnContext, time.Minute
			if setup.name == "echo" {
				web.Config.WriteTimeout = time.Second
			}
			web.Start()
			t.Cleanup(web.Close) // after the bodies of the responses
			v := visit{t, web}

			for _, entry := range []string{"/trapeze/ui", "/trapeze/ui/"} {
				v.page(entry)
				v.page(entry + "?window=24h")
			}
			v.page("/trapeze/ui/jobs/" + id)
			status, _, text := v.ask("POST", "/trapeze/ui/logout", "", "text/html") // redirects to the first page
			is.Equal(status, http.StatusOK)
			is.True(strings.Contains(text, "<title>"))
			status, _, text = v.ask("GET", "/trapeze/jobs/"+id, "", "")
			is.Equal(status, http.StatusOK)
			is.True(strings.Contains(text, `"id":"`+id+`"`))
			status, _, _ = v.ask("GET", "/trapeze/jobs/987654321", "", "")
			is.Equal(status, http.StatusNotFound)
			status, _, _ = v.ask("POST", "/trapeze/jobs", `{"kind":"echo"}`, "")
			is.Equal(status, http.StatusAccepted)
			v.stream("/trapeze/jobs/"+id+"/stream", setup.refused, setup.name == "echo")
		})
	}
}

// A path with a slash at its end does not exist. The response names the middleware that may have added the slash.
func TestAddedTrailingSlashesAreNamed(t *testing.T) {
	t.Parallel()
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for _, code := range []int{0, http.StatusMovedPermanently} {
		m := middleware.AddTrailingSlashWithConfig(middleware.TrailingSlashConfig{RedirectCode: code})
		web := httptest.NewServer(onEcho(before(m))(r, api.Options{InsecureAllowAll: true}))
		t.Cleanup(web.Close)
		for _, path := range []string{"/jobs", "/jobs/1", "/events/stream", "/readyz", "/metrics", "/ui/now", "/ui/jobs/1", "/ui/static/app.css"} {
			status, at, text := visit{t, web}.ask("GET", "/trapeze"+path, "", "")
			if status != http.StatusNotFound || !strings.Contains(text, "AddTrailingSlash") {
				t.Errorf("code %d, %s: %d at %s, %q", code, path, status, at, text)
			}
		}
	}
}

// visit sends requests like a browser.
type visit struct {
	t   *testing.T
	web *httptest.Server
}

func (v visit) open(method, path, body, accept string) *http.Response {
	v.t.Helper()
	request, err := http.NewRequestWithContext(v.t.Context(), method, v.web.URL+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	request.Header.Set("Origin", v.web.URL)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", accept)
	response, err := v.web.Client().Do(request)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// ask returns the status, the path after redirects and the text of a response.
func (v visit) ask(method, path, body, accept string) (status int, at, text string) {
	v.t.Helper()
	response := v.open(method, path, body, accept)
	read, err := io.ReadAll(response.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return response.StatusCode, response.Request.URL.Path, string(read)
}

var linkOf = regexp.MustCompile(`<(?:a|link|script)[^>]* (?:href|src)="([^"#?]*)"`)

// page opens a page of the dashboard, its static files and the pages of its navigation.
func (v visit) page(path string) {
	v.t.Helper()
	response := v.open("GET", path, "", "text/html")
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		v.t.Fatalf("%s: %v, %s at %s", path, err, response.Status, response.Request.URL)
	}
	links := linkOf.FindAllStringSubmatch(string(text), 9)
	if len(links) < 9 {
		v.t.Fatalf("%s has %d links", path, len(links))
	}
	for _, link := range links {
		at, err := response.Request.URL.Parse(link[1])
		if err != nil {
			v.t.Fatal(err)
		}
		if status, end, _ := v.ask("GET", at.Path, "", ""); status != http.StatusOK {
			v.t.Errorf("the link %q of %s: %d at %s", link[1], response.Request.URL, status, end)
		}
	}
}

// stream opens a stream and reads its first event, and the first comment thereafter if long is set.
func (v visit) stream(path, refused string, long bool) {
	v.t.Helper()
	response := v.open("GET", path, "", "text/event-stream")
	if refused != "" {
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusInternalServerError || !strings.Contains(string(text), refused) {
			v.t.Errorf("stream: %s, %q", response.Status, text)
		}
		return
	}
	if response.StatusCode != http.StatusOK {
		v.t.Fatalf("stream: %s", response.Status)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if long && lines.Text() == ": keep-alive" || !long && lines.Text() == "event: snapshot" {
			return
		}
	}
	v.t.Errorf("the stream ended early: %v", lines.Err())
}
