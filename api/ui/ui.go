package ui

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// within is the timeout for reading a page's data. It is short, so that an operator soon notices that the database does not respond.
const within = 8 * time.Second

// dashboard serves the pages.
type dashboard struct {
	o     Options
	reads *reader
}

// New returns the dashboard. It serves /, /jobs, /static/… and the other pages. Mount it below a prefix that ends with a slash, and strip
// the prefix from requests.
func New(o Options) http.Handler {
	d := &dashboard{o, newReader(o)}
	mux := http.NewServeMux()
	serveFile := func(w http.ResponseWriter, r *http.Request) { files().ServeHTTP(w, r) }
	mux.HandleFunc("GET /static/{file}", serveFile)
	mux.HandleFunc("GET /static/{folder}/{file}", serveFile)
	mux.HandleFunc("GET /login", d.login)
	mux.HandleFunc("GET /now", d.serve(routes[0]))
	mux.HandleFunc("GET /ui/now", func(w http.ResponseWriter, r *http.Request) { // the browser resolved the redirect at /ui/, not at /ui
		Redirect(w, r, "../now")
	})
	for _, p := range routes {
		mux.HandleFunc("GET "+p.Path, d.serve(p))
	}
	nowhere := d.serve(Route{Path: "/", Needs: access.Nothing, show: func(*reader, *page, *http.Request) error { return errNoPage }})
	mux.HandleFunc("/", nowhere)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if clean := path.Clean(r.URL.Path); r.URL.Path != clean && r.URL.Path != clean+"/" {
			nowhere(w, r) // the mux would redirect to the cleaned path without the prefix, which is an API route
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// SlashRemedy is the remedy if middleware of the host program adds a slash to every path.
const SlashRemedy = "If the host program uses AddTrailingSlash, its Skipper must exclude the prefix of Trapeze"

// Redirect sends the browser to a path relative to the request's, with the same query. The path is relative because only a proxy in front of
// the pod may know the prefix.
func Redirect(w http.ResponseWriter, r *http.Request, path string) {
	to := url.URL{Path: path, RawQuery: r.URL.RawQuery}
	w.Header().Set("Location", to.String())
	w.WriteHeader(http.StatusFound)
}

// Route describes one kind of page.
type Route struct {
	Own   bool   // visitors who may see only their own jobs may open the page, and see nothing else on it
	Path  string // relative to the dashboard's root; may contain {id}, {name} or {group}
	file  string // the name of the template, or empty for a download
	here  string // the page's entry in the navigation
	Needs access.Permission
	show  func(rd *reader, p *page, r *http.Request) error // reads the page's data
}

// Routes returns the pages that require a permission. Tests request each of them with every role.
func Routes() []Route { return slices.Clone(routes) }

var routes = []Route{
	{false, "/{$}", "now.html", "now", access.WorkersView, showNow},
	{true, "/pipelines", "pipelines.html", "pipelines", access.JobsRead, showPipelines},
	{true, "/pipelines/{id}", "pipeline.html", "pipelines", access.JobsRead, showPipeline},
	{true, "/jobs", "jobs.html", "jobs", access.JobsRead, showJobs},
	{true, "/jobs/new", "submit.html", "jobs", access.JobsSubmit, showSubmit},
	{true, "/jobs/{id}", "job.html", "jobs", access.JobsRead, showJob},
	{true, "/failures", "failures.html", "failures", access.JobsRead, showFailures},
	{true, "/failures/{group}", "failure.html", "failures", access.JobsRead, showFailure},
	{true, "/jobs/{id}/children", "children.html", "pipelines", access.JobsRead, showChildren},
	{true, "/jobs/{id}/args", "", "jobs", access.JobsRead, jobValue("args")},
	{true, "/jobs/{id}/result", "", "jobs", access.JobsRead, jobValue("result")},
	{false, "/schedules", "schedules.html", "schedules", access.WorkersView, showSchedules},
	{false, "/schedules/{name}", "schedule.html", "schedules", access.WorkersView, showSchedule},
	{false, "/lanes", "lanes.html", "lanes", access.WorkersView, showBoard("Lanes")},
	{false, "/limits", "limits.html", "limits", access.WorkersView, showLimits},
	{false, "/kinds", "kinds.html", "kinds", access.WorkersView, showKinds},
	{false, "/pods", "pods.html", "pods", access.WorkersView, showBoard("Pods")},
	{false, "/audit", "audit.html", "audit", access.AuditRead, showAudit},
	{false, "/settings", "settings.html", "settings", access.WorkersView, showSettings},
	{false, "/settings/doctor", "doctor.html", "settings", access.WorkersView, showDoctor},
	{false, "/settings/roles", "roles.html", "settings", access.RolesManage, showRoles},
}

func (d *dashboard) page(r *http.Request, here string) *page {
	root := strings.Repeat("../", max(strings.Count(r.URL.Path, "/")-1, 0))
	if root == "" {
		root = "./"
	}
	return &page{Here: here, Root: root, API: root + "../", Now: time.Now(), FourEyes: d.o.FourEyes}
}

// serve returns the handler for one kind of page.
func (d *dashboard) serve(v Route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		p := d.page(r, v.here)
		who, err := d.o.Visitor(r)
		if errors.Is(err, access.ErrUnauthenticated) && d.o.Sessions {
			w.Header().Set("WWW-Authenticate", d.o.Challenge)
			p.Title, p.Still, p.Data = "Sign in", true, login{Next: Onward(strings.TrimPrefix(r.URL.Path, "/") + "?" + r.URL.RawQuery)}
			d.render(w, r, http.StatusUnauthorized, "login.html", p)
			return
		}
		if err == nil {
			p.Principal, p.Session = who, d.o.Sessions
			err = p.mayEnter(v.Needs, v.Own)
		}
		if other := p.firstPage(); errors.Is(err, errForbidden) && v.Path == "/{$}" && other != "" {
			w.Header().Set("Location", p.Root+other) // http.Redirect would make the path absolute and lose the stripped prefix
			w.WriteHeader(http.StatusSeeOther)
			return
		}
		if err == nil {
			if now, failed := d.reads.now(ctx); failed == nil { // otherwise the page's own reads report the error
				p.Now = now
			}
		}
		if err == nil {
			err = v.show(d.reads, p, r.WithContext(ctx))
		}
		if err == nil && p.file != nil {
			p.file.write(w)
			return
		}
		if err == nil {
			p.Queue, err = d.reads.queueState(ctx, fresh(r))
		}
		if err != nil {
			d.fail(w, r, p, err)
			return
		}
		d.render(w, r, http.StatusOK, v.file, p)
	}
}

// render writes a complete page, or an error if the template fails.
func (d *dashboard) render(w http.ResponseWriter, r *http.Request, status int, file string, p *page) {
	var body bytes.Buffer
	if err := templates()[file].ExecuteTemplate(&body, "layout.html", p); err != nil {
		slog.ErrorContext(r.Context(), "could not write a page of the dashboard", "page", file, "err", err)
		http.Error(w, "Internal error: see the server's log.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // the client may have disconnected
}

// problem is the content of an error page.
type problem struct {
	Status  int
	Message string
	Detail  string
}

// fail writes a page that describes the error and the remedy.
func (d *dashboard) fail(w http.ResponseWriter, r *http.Request, p *page, err error) {
	said := problem{http.StatusInternalServerError, "Internal error", "See the server's log for the cause."}
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		w.Header().Set("WWW-Authenticate", d.o.Challenge)
		said = problem{http.StatusUnauthorized, "You are not signed in", "Sign in to this service, then reload the page."}
	case errors.Is(err, errForbidden):
		said = problem{http.StatusForbidden, "Permission denied", "Ask an administrator of this service for the permission. " + err.Error() + "."}
	case errors.Is(err, errNoSessions):
		said = problem{http.StatusNotFound, "No sign-in here", "This service has no browser sessions: a proxy or the host program authenticates requests, or none is required."}
	case errors.Is(err, errNoPage):
		said = problem{http.StatusNotFound, "Page not found", "Check the address."}
		if strings.HasSuffix(r.URL.Path, "/") {
			said.Detail = "Remove the slash at the end of the address. " + SlashRemedy + "."
		}
	case errors.Is(err, job.ErrNotFound):
		said = problem{http.StatusNotFound, "Not found", "It does not exist, or was removed by retention."}
	case errors.Is(err, job.ErrUnknownSchedule):
		said = problem{http.StatusNotFound, "Schedule not found", "It does not exist, or was deleted: see the audit log."}
	case errors.Is(err, job.ErrInvalid):
		said = problem{http.StatusBadRequest, "Invalid filter", strings.TrimPrefix(err.Error(), job.ErrInvalid.Error()+": ")}
	case errors.Is(err, context.Canceled):
		return
	case store.Denied(err) != "":
		slog.ErrorContext(r.Context(), "could not load a page of the dashboard", "path", r.URL.Path, "err", err)
		said.Message, said.Detail = "The pod's database role lacks a permission", store.Denied(err)+". An operator can help: "+store.GrantRemedy+"."
	case store.Transient(err) || errors.Is(err, context.DeadlineExceeded):
		slog.WarnContext(r.Context(), "could not load a page of the dashboard", "path", r.URL.Path, "err", err)
		said = problem{http.StatusServiceUnavailable, "The database does not respond", "Running jobs continue. This page retries every " +
			"five seconds; a list may need a narrower filter."}
		if store.Full(err) {
			said.Message, said.Detail = "The database server has no free connection", "Running jobs continue. An operator can help: "+store.FullRemedy+"."
		} else if held := d.blocked(r, p); held != "" {
			said.Message, said.Detail = "A session blocks the database's tables", held
		}
	default:
		slog.ErrorContext(r.Context(), "could not load a page of the dashboard", "path", r.URL.Path, "err", err)
	}
	p.Title, p.Data, p.Still = said.Message, said, said.Status != http.StatusServiceUnavailable
	d.render(w, r, said.Status, "problem.html", p)
}

// blocked describes the sessions that block Trapeze's sessions, and the remedy. It returns an empty string if there are none, or if the
// visitor may not see doctor's findings.
func (d *dashboard) blocked(r *http.Request, p *page) string {
	if p.mayEnter(access.WorkersView, false) != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	found, err := d.o.Locks(ctx)
	var says []string
	for _, f := range found {
		if err == nil && f.Status == doctor.Failing {
			says = append(says, f.Says+": "+f.Do+".")
		}
	}
	return strings.Join(says, " ")
}

// login shows the login form, or a page that explains why there is none.
func (d *dashboard) login(w http.ResponseWriter, r *http.Request) {
	p := d.page(r, "")
	if !d.o.Sessions {
		d.fail(w, r, p, errNoSessions)
		return
	}
	p.Title, p.Still = "Sign in", true
	p.Data = login{Failed: r.URL.Query().Get("failed") != "", Next: Onward(r.URL.Query().Get("next"))}
	d.render(w, r, http.StatusOK, "login.html", p)
}

type login struct {
	Failed bool   // the previous token was wrong
	Next   string // the requested page (see [Onward])
}
