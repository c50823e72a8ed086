package ui

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

//go:embed templates/*.html
var sources embed.FS

// templates maps each page to its template, which includes the layout. They are parsed on first use, because most commands show no page.
var templates = sync.OnceValue(parse)

func parse() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(words).ParseFS(sources, "templates/layout.html", "templates/parts.html"))
	list := map[string]*template.Template{}
	for _, file := range []string{"problem.html", "login.html"} {
		list[file] = template.Must(template.Must(layout.Clone()).ParseFS(sources, "templates/"+file))
	}
	for _, p := range pages {
		if p.file == "" {
			continue
		}
		list[p.file] = template.Must(template.Must(layout.Clone()).ParseFS(sources, "templates/"+p.file))
	}
	return list
}

// page is the data that a template renders.
type page struct {
	Title string
	Here  string    // the page's entry in the navigation
	Root  string    // the path from this page to the dashboard's first page
	API   string    // the path from this page to the API
	Live  string    // the stream to follow, relative to the API's root, or empty
	Still bool      // the page no longer changes
	Now   time.Time // when the data was read
	Data  any
	file  *download // if not nil, sent instead of a page
	Queue job.QueueState
	visitor
	Session  bool // the visitor has a session and can log out
	FourEyes bool // visitors cannot approve the jobs that they submitted
}

// visitor is the principal that views a page. Templates check its permissions before they show a button.
type visitor struct{ access.Principal }

// Can reports whether the visitor has a permission for all jobs.
func (v visitor) Can(permission string) bool {
	allowed, own := v.Principal.Can(access.Permission(permission))
	return allowed && !own
}

// May reports whether the visitor has a permission, possibly only for their own jobs.
func (v visitor) May(permission string) bool {
	allowed, _ := v.Principal.Can(access.Permission(permission))
	return allowed
}

func (d *dashboard) page(r *http.Request, v view) *page {
	root := strings.Repeat("../", max(strings.Count(r.URL.Path, "/")-1, 0))
	if root == "" {
		root = "./"
	}
	return &page{Here: v.here, Root: root, API: root + "../", Now: time.Now(), FourEyes: d.o.FourEyes}
}

// serve returns the handler for one kind of page.
func (d *dashboard) serve(v view) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		p := d.page(r, v)
		who, err := d.o.Visitor(r)
		if errors.Is(err, access.ErrUnauthenticated) && d.o.Sessions {
			w.Header().Set("WWW-Authenticate", d.o.Challenge)
			p.Title, p.Still, p.Data = "Sign in", true, login{Next: Onward(strings.TrimPrefix(r.URL.Path, "/") + "?" + r.URL.RawQuery)}
			d.render(w, r, http.StatusUnauthorized, "login.html", p)
			return
		}
		if err == nil {
			p.Principal, p.Session = who, d.o.Sessions
			err = p.mayEnter(v)
		}
		if other := p.firstPage(); errors.Is(err, errForbidden) && v.path == "/{$}" && other != "" {
			w.Header().Set("Location", p.Root+other) // http.Redirect would make the path absolute and lose the stripped prefix
			w.WriteHeader(http.StatusSeeOther)
			return
		}
		if err == nil {
			err = v.show(d, p, r.WithContext(ctx))
		}
		if err == nil && p.file != nil {
			p.file.write(w)
			return
		}
		if err == nil {
			p.Queue, err = d.queue.get(ctx, r.Header.Get("X-Fresh") != "", func(ctx context.Context) (job.QueueState, error) { return storeview.Queue(ctx, d.o.Store) })
		}
		if err != nil {
			d.fail(w, r, p, err)
			return
		}
		d.render(w, r, http.StatusOK, v.file, p)
	}
}

// firstPage returns the page to which a visitor without access to the start page is redirected. It returns an empty string if the visitor
// may not see any page.
func (v visitor) firstPage() string {
	switch {
	case v.May(string(access.JobsRead)):
		return "jobs"
	case v.Can(string(access.AuditRead)):
		return "audit"
	case v.Can(string(access.RolesManage)):
		return "settings/roles"
	case v.May(string(access.JobsSubmit)):
		return "jobs/new"
	}
	return ""
}

// mayEnter returns an error if the visitor may not see a page.
func (v visitor) mayEnter(to view) error {
	switch allowed, own := v.Principal.Can(to.needs); {
	case !allowed:
		return fmt.Errorf("%w: this page requires permission %s", errForbidden, to.needs)
	case own && !to.own:
		return fmt.Errorf("%w: your permission %s covers only your own jobs", errForbidden, to.needs)
	}
	return nil
}

// render writes a complete page, or an error if the template fails.
func (d *dashboard) render(w http.ResponseWriter, r *http.Request, status int, file string, p *page) {
	var body bytes.Buffer
	if err := templates()[file].ExecuteTemplate(&body, "layout.html", p); err != nil {
		d.o.Logger.ErrorContext(r.Context(), "could not write a page of the dashboard", "page", file, "err", err)
		http.Error(w, "Internal error: see the server's log.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // the client may have disconnected
}

var (
	errNoPage    = errors.New("page not found")
	errForbidden = errors.New("permission denied")

	errNoSessions = errors.New("sessions are disabled")
)

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
	case errors.Is(err, job.ErrNotFound):
		said = problem{http.StatusNotFound, "Not found", "It does not exist, or was removed by retention."}
	case errors.Is(err, job.ErrUnknownSchedule):
		said = problem{http.StatusNotFound, "Schedule not found", "It does not exist, or was deleted: see the audit log."}
	case errors.Is(err, job.ErrInvalid):
		said = problem{http.StatusBadRequest, "Invalid filter", strings.TrimPrefix(err.Error(), job.ErrInvalid.Error()+": ")}
	case errors.Is(err, context.Canceled):
		return
	case store.Transient(err) || errors.Is(err, context.DeadlineExceeded):
		d.o.Logger.WarnContext(r.Context(), "could not load a page of the dashboard", "path", r.URL.Path, "err", err)
		said = problem{http.StatusServiceUnavailable, "The database does not respond", "Running jobs continue. This page retries every " +
			"five seconds; a list may need a narrower filter."}
	default:
		d.o.Logger.ErrorContext(r.Context(), "could not load a page of the dashboard", "path", r.URL.Path, "err", err)
	}
	p.Title, p.Data, p.Still = said.Message, said, said.Status != http.StatusServiceUnavailable
	d.render(w, r, said.Status, "problem.html", p)
}

// login shows the login form, or a page that explains why there is none.
func (d *dashboard) login(w http.ResponseWriter, r *http.Request) {
	p := d.page(r, view{})
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
	Next   string // the requested page, see [Onward]
}
