package ui

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// perPage is the number of rows on one page of a list.
const perPage = 50

// page is the data that a template renders.
type page struct {
	Title string
	Here  string    // the page's entry in the navigation
	Root  string    // the path from this page to the dashboard's first page
	API   string    // the path from this page to the API
	Live  string    // the stream to follow, relative to the API's root, or empty
	Still bool      // the page does not refresh itself
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

// firstPage returns the page to which a visitor without access to the start page is redirected, or an empty string if the visitor may not
// see any page.
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

// mayEnter returns an error if the visitor may not see a page that requires the given permission. If ownAllowed is set, the page can be
// limited to the visitor's own jobs.
func (v visitor) mayEnter(needs access.Permission, ownAllowed bool) error {
	switch allowed, own := v.Principal.Can(needs); {
	case !allowed:
		return fmt.Errorf("%w: this page requires permission %s", errForbidden, needs)
	case own && !ownAllowed:
		return fmt.Errorf("%w: your permission %s covers only your own jobs", errForbidden, needs)
	}
	return nil
}

var (
	errNoPage    = errors.New("page not found")
	errForbidden = errors.New("permission denied")

	errNoSessions = errors.New("sessions are disabled")
)

// action is a button that sends a request to the API.
type action struct {
	Method, Path string // relative to the API's root
	Label        string
	Ask          string // the question in the confirmation dialog, or empty for none
	Danger       bool
}

// download is a file that the browser saves.
type download struct {
	name string
	body []byte
}

func (f download) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Disposition", "attachment; filename="+strconv.Quote(f.name))
	_, _ = w.Write(f.body) // the client may have disconnected
}
