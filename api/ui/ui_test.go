package ui

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// away returns a dashboard with an unreachable database, for a visitor with all permissions.
func away(t *testing.T, o Options) http.Handler {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if o.Store, err = store.New(context.Background(), pool, store.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Store.Close)
	o.Calendar = calendar{o.Store}
	o.Locks = func(ctx context.Context) ([]doctor.Finding, error) {
		_, err := view.LockHolders(ctx, o.Store)
		return nil, err
	}
	if o.Visitor == nil {
		o.Visitor = func(*http.Request) (access.Principal, error) {
			role, _ := access.BuiltInRole(access.PlatformAdmin)
			return access.Principal{Name: "ana"}.With(access.RightsOf(role)), nil
		}
	}
	o.EngineUse = func(context.Context, []job.LaneUse) {}
	o.Searched = func(*http.Request, access.Principal, view.Search) error { return nil }
	return New(o)
}

// calendar reads schedules from an unreachable database.
type calendar struct{ *store.Store }

func (c calendar) Schedules(ctx context.Context) ([]job.ScheduleUse, error) {
	_, err := admin.Schedules(ctx, c.Store)
	return nil, err
}

func (c calendar) ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error) {
	_, err := admin.Schedule(ctx, c.Store, name)
	return job.ScheduleUse{}, err
}

func (c calendar) ScheduleOccurrences(ctx context.Context, name string, before time.Time, limit int) ([]job.Occurrence, error) {
	_, err := admin.LastOccurrences(ctx, c.Store, []string{name}, before, limit)
	return nil, err
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request)
	return w
}

func TestDashboardPageWithoutDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := away(t, Options{})
	for _, path := range []string{"/", "/jobs", "/jobs/7", "/pipelines", "/pipelines/7", "/schedules", "/schedules/nightly", "/lanes", "/pods", "/audit"} {
		w := get(h, path)
		is.Equal(w.Code, http.StatusServiceUnavailable)
		is.True(strings.Contains(w.Body.String(), "The database does not respond"))
		is.True(!strings.Contains(w.Body.String(), "data-still"))  // the page refreshes itself
		is.True(!strings.Contains(w.Body.String(), "127.0.0.1:1")) // the page does not reveal the database address
	}
}

func TestProblemPageWithoutFreeConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := away(t, Options{Visitor: func(*http.Request) (access.Principal, error) {
		return access.Principal{}, &pgconn.PgError{Code: "53300"}
	}})
	w := get(h, "/jobs")
	is.Equal(w.Code, http.StatusServiceUnavailable)
	is.True(strings.Contains(w.Body.String(), "no free connection"))
	is.True(strings.Contains(w.Body.String(), "max_connections"))
}

func TestDashboardUnknownPagesAndFilters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := away(t, Options{})
	for _, path := range []string{"/nothing", "/jobs/7/8", "/jobs/abc", "/pipelines/-1", "/schedules/a%20b"} {
		w := get(h, path)
		is.Equal(w.Code, http.StatusNotFound)
		is.True(strings.Contains(w.Body.String(), "ot found"))
	}
	for _, path := range []string{"/jobs?state=done", "/jobs?since=yesterday", "/jobs?pipeline=x", "/pipelines?status=x", "/audit?cursor=!", "/schedules/a?cursor=!",
		"/jobs?cursor=1.1", "/pipelines?cursor=" + text.EncodeCursor("jobs", "1.1"), "/audit?cursor=7"} {
		w := get(h, path)
		is.Equal(w.Code, http.StatusBadRequest) // ignoring an unknown filter would show too many jobs
		is.True(strings.Contains(w.Body.String(), "Invalid filter"))
	}
}

func TestLoginFormOnUnauthenticatedPage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	nobody := func(*http.Request) (access.Principal, error) { return access.Principal{}, access.ErrUnauthenticated }
	w := get(away(t, Options{Visitor: nobody, Sessions: true}), "/jobs/7")
	is.Equal(w.Code, http.StatusUnauthorized)
	is.True(strings.Contains(w.Body.String(), `action="../login"`))
	w = get(away(t, Options{Visitor: nobody}), "/jobs/7")
	is.Equal(w.Code, http.StatusUnauthorized)
	is.True(!strings.Contains(w.Body.String(), "<form method=\"post\""))
	w = get(away(t, Options{Sessions: true}), "/login?failed=1")
	is.Equal(w.Code, http.StatusOK)
	is.True(strings.Contains(w.Body.String(), "Unknown or expired token"))
}

// everyScript returns the text of all scripts written for the dashboard.
func everyScript() (text string) {
	for name, f := range files().byName {
		if strings.HasSuffix(name, ".js") && !strings.HasSuffix(name, ".min.js") {
			text += string(f.body)
		}
	}
	return text
}

func TestStaticFileCaching(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := away(t, Options{})
	for name, f := range files().byName {
		w := get(h, "/"+files().address(name))
		is.Equal(w.Code, http.StatusOK)
		is.True(strings.Contains(w.Header().Get("Cache-Control"), "immutable"))
		is.Equal(w.Header().Get("Content-Type"), f.kind)
		is.True(f.kind != "") // browsers must not guess the media type
		tag := w.Header().Get("ETag")
		is.Equal(get(h, "/static/"+name, "If-None-Match", tag).Code, http.StatusNotModified)
		for _, other := range []string{"/static/" + name, "/static/another-release/" + name} {
			is.Equal(get(h, other).Header().Get("Cache-Control"), "no-cache") // without the current hash in its URL, the file is not cached
		}
	}
	for _, found := range regexp.MustCompile(`"\./([a-z]+\.js)"`).FindAllStringSubmatch(everyScript(), -1) {
		is.True(len(files().byName[found[1]].body) > 0) // every imported script exists
	}
	is.Equal(get(h, "/static/ui.go").Code, http.StatusNotFound)
}

func TestDashboardFilesWithoutInlineCode(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := get(away(t, Options{}), "/login")
	for _, body := range []string{w.Body.String(), everyScript(), string(files().byName["app.css"].body), string(files().byName["favicon.svg"].body)} {
		is.True(!strings.Contains(body, " style="))
		is.True(!strings.Contains(body, "eval("))
		is.True(!strings.Contains(body, "innerHTML ="))
		is.True(!strings.Contains(strings.ReplaceAll(body, "http://www.w3.org/2000/svg", ""), "://")) // nothing is loaded from other origins
	}
}
