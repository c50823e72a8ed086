package ui

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Options configures [New].
type Options struct {
	// Store is read by the pages. Required.
	Store *store.Store
	// Calendar reads the schedules. Required.
	Calendar Calendar
	// Visitor authenticates a request and returns its sender with permissions. An error that wraps [access.ErrUnauthenticated] redirects to
	// the login page. Required.
	Visitor func(*http.Request) (access.Principal, error)
	// Shown removes secrets that a visitor may not see from a job's arguments, result and planned steps. If the visitor may see secrets of
	// others, Shown writes an audit entry, and returns an error if that fails. By default nothing is hidden.
	Shown func(*http.Request, access.Principal, job.Job) (job.Job, error)
	// ShownSchedule does the same for the arguments of the named schedule. By default nothing is hidden.
	ShownSchedule func(request *http.Request, to access.Principal, name string, s job.ScheduleSetting) (job.ScheduleSetting, error)
	// Searched writes an audit entry before a visitor searches other principals' args or errors. It returns an error if the entry cannot be
	// written. By default, searches are not audited.
	Searched func(*http.Request, access.Principal, storeview.Search) error
	// Sessions enables the login form. POST login must begin a session, and POST logout must end it.
	Sessions bool
	// Challenge is the WWW-Authenticate header of a 401. Required.
	Challenge string
	// FourEyes means that visitors cannot approve jobs that they submitted.
	FourEyes bool
	// Examine runs doctor's checks. Required.
	Examine func(context.Context) ([]Finding, error)
	// EngineUse completes lanes with what their engines report. By default, the pages show only what PostgreSQL knows.
	EngineUse func(context.Context, []job.LaneUse)
	// Retention and Limits list this pod's settings.
	Retention, Limits []Setting
	// Logger receives unexpected errors. Default [slog.Default].
	Logger *slog.Logger
}

// within is the read timeout of a page. It is short, so that an operator soon sees that the database does not respond.
const within = 8 * time.Second

// dashboard serves the pages.
type dashboard struct {
	o        Options
	first    *store.Store // for the first page of a list
	calendar *shared[[]job.ScheduleUse]
	board    *shared[board]
	slots    *shared[[]storeview.BoardSlots]
	queue    *shared[job.QueueState]
	findings *shared[[]Finding]
	stats    map[string]*shared[numbers]       // by period
	failed   map[string]*shared[failures.List] // by period
	byKind   map[string]*shared[kindsRead]     // by period
}

// New returns the dashboard. It serves /, /jobs, /static/… and so on. Mount it below a prefix that ends with a slash, and strip the prefix
// from requests.
func New(o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Shown == nil {
		o.Shown = func(_ *http.Request, _ access.Principal, j job.Job) (job.Job, error) { return j, nil }
	}
	if o.EngineUse == nil {
		o.EngineUse = func(context.Context, []job.LaneUse) {}
	}
	if o.Searched == nil {
		o.Searched = func(*http.Request, access.Principal, storeview.Search) error { return nil }
	}
	if o.ShownSchedule == nil {
		o.ShownSchedule = func(_ *http.Request, _ access.Principal, _ string, s job.ScheduleSetting) (job.ScheduleSetting, error) {
			return s, nil
		}
	}
	d := &dashboard{o: o, first: o.Store.Searching(firstPage), calendar: &shared[[]job.ScheduleUse]{}, board: &shared[board]{}, slots: &shared[[]storeview.BoardSlots]{},
		queue: &shared[job.QueueState]{}, findings: &shared[[]Finding]{}, stats: sharedStats(), failed: failedByPeriod(), byKind: kindsByPeriod()}
	mux := http.NewServeMux()
	serveFile := func(w http.ResponseWriter, r *http.Request) { files().ServeHTTP(w, r) }
	mux.HandleFunc("GET /static/{file}", serveFile)
	mux.HandleFunc("GET /static/{folder}/{file}", serveFile)
	mux.HandleFunc("GET /login", d.login)
	for _, p := range pages {
		mux.HandleFunc("GET "+p.path, d.serve(p))
	}
	nowhere := d.serve(view{path: "/", needs: access.Nothing, show: func(*dashboard, *page, *http.Request) error { return errNoPage }})
	mux.HandleFunc("/", nowhere)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if clean := path.Clean(r.URL.Path); r.URL.Path != clean && r.URL.Path != clean+"/" {
			nowhere(w, r) // the mux would redirect to the clean path without the prefix, which is a route of the API
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// view is one kind of page.
type view struct {
	own   bool // visitors who may only see their own jobs may open it, and see nothing else on it
	path  string
	file  string // the name of the template, or empty for a download
	here  string // the page's entry in the navigation
	needs access.Permission
	show  func(d *dashboard, p *page, r *http.Request) error // reads the content of the page
}

var pages = []view{
	{false, "/{$}", "now.html", "now", access.WorkersView, (*dashboard).now},
	{true, "/pipelines", "pipelines.html", "pipelines", access.JobsRead, (*dashboard).pipelines},
	{true, "/pipelines/{id}", "pipeline.html", "pipelines", access.JobsRead, (*dashboard).pipeline},
	{true, "/jobs", "jobs.html", "jobs", access.JobsRead, (*dashboard).jobs},
	{true, "/jobs/new", "submit.html", "jobs", access.JobsSubmit, (*dashboard).submit},
	{true, "/jobs/{id}", "job.html", "jobs", access.JobsRead, (*dashboard).job},
	{true, "/failures", "failures.html", "failures", access.JobsRead, (*dashboard).failures},
	{true, "/failures/{group}", "failure.html", "failures", access.JobsRead, (*dashboard).failure},
	{true, "/jobs/{id}/children", "children.html", "pipelines", access.JobsRead, (*dashboard).children},
	{true, "/jobs/{id}/args", "", "jobs", access.JobsRead, jobValue("args")},
	{true, "/jobs/{id}/result", "", "jobs", access.JobsRead, jobValue("result")},
	{false, "/schedules", "schedules.html", "schedules", access.WorkersView, (*dashboard).schedules},
	{false, "/schedules/{name}", "schedule.html", "schedules", access.WorkersView, (*dashboard).schedule},
	{false, "/lanes", "lanes.html", "lanes", access.WorkersView, (*dashboard).lanes},
	{false, "/kinds", "kinds.html", "kinds", access.WorkersView, (*dashboard).kinds},
	{false, "/pods", "pods.html", "pods", access.WorkersView, (*dashboard).pods},
	{false, "/audit", "audit.html", "audit", access.AuditRead, (*dashboard).audit},
	{false, "/settings", "settings.html", "settings", access.WorkersView, (*dashboard).settings},
	{false, "/settings/doctor", "doctor.html", "settings", access.WorkersView, (*dashboard).doctor},
	{false, "/settings/roles", "roles.html", "settings", access.RolesManage, (*dashboard).roles},
}

// Page describes one kind of page. A test uses it to request every page with every role.
type Page struct {
	Path  string // relative to the dashboard's root; may contain {id}, {name} or {group}
	Needs access.Permission
	Own   bool // visitors who may only see their own jobs may open it
}

// Pages returns the pages that require a permission.
func Pages() (list []Page) {
	for _, p := range pages {
		list = append(list, Page{p.path, p.needs, p.own})
	}
	return list
}
