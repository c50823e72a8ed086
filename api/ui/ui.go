package ui

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
)

// Options configure [New].
type Options struct {
	// Store is read from. Required.
	Store *store.Store
	// Visitor says who asks. An error that wraps [ErrUnauthenticated] leads to the login page. Default: somebody without a name
	// who may do everything.
	Visitor func(*http.Request) (Visitor, error)
	// Logger takes errors that should not happen. Default [slog.Default].
	Logger *slog.Logger
}

// ErrUnauthenticated says that a request does not tell who asks.
var ErrUnauthenticated = errors.New("not logged in")

// Visitor is who looks at a page.
type Visitor struct {
	// Name is shown in the corner; empty: nobody is logged in.
	Name string
	// Session says that there is a session that can be ended: a button for POST ui/logout is shown.
	Session bool
	// Can reports whether he has a permission. Default: he has all.
	Can func(access.Permission) bool
	// Mask hides what he may not see of the args or the result of a job of a kind. Default: nothing is hidden.
	Mask func(kind string, value json.RawMessage) json.RawMessage
}

// within bounds how long a page may read: an operator had better learn that the database does not answer.
const within = 8 * time.Second

// dashboard serves the pages.
type dashboard struct {
	o     Options
	board *shared[board]
}

// New returns the dashboard. It serves /, /jobs, /static/… : mount it below a prefix that is taken off, with a slash at its end.
func New(o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Visitor == nil {
		o.Visitor = func(*http.Request) (Visitor, error) { return Visitor{}, nil }
	}
	d := &dashboard{o: o, board: &shared[board]{}}
	mux := http.NewServeMux()
	mux.Handle("GET /static/{file}", files)
	mux.HandleFunc("GET /login", d.login)
	for _, p := range pages {
		mux.HandleFunc("GET "+p.path, d.serve(p))
	}
	mux.HandleFunc("/", d.serve(view{path: "/", needs: access.Nothing, show: func(*dashboard, *page, *http.Request) error { return errNoPage }}))
	return secured(mux)
}

// view is one kind of page.
type view struct {
	path  string
	file  string // its template
	here  string // its place in the navigation
	needs access.Permission
	show  func(d *dashboard, p *page, r *http.Request) error // reads what the page shows
}

var pages = []view{
	{"/{$}", "now.html", "now", access.WorkersView, (*dashboard).now},
	{"/pipelines", "pipelines.html", "pipelines", access.JobsRead, (*dashboard).pipelines},
	{"/pipelines/{id}", "pipeline.html", "pipelines", access.JobsRead, (*dashboard).pipeline},
	{"/jobs", "jobs.html", "jobs", access.JobsRead, (*dashboard).jobs},
	{"/jobs/{id}", "job.html", "jobs", access.JobsRead, (*dashboard).job},
	{"/lanes", "lanes.html", "lanes", access.WorkersView, (*dashboard).lanes},
	{"/pods", "pods.html", "pods", access.WorkersView, (*dashboard).pods},
	{"/audit", "audit.html", "audit", access.AuditRead, (*dashboard).audit},
}

// policy allows what comes from here and nothing else, and no script or style inside a page.
const policy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}
