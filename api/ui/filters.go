package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/cursor"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// filters are the filters of a list as the form shows them, and as its address holds them.
type filters struct {
	url.Values
	path string // also the name of the list, as the API's
}

// Get is the value of one filter. (Templates call it.)
func (f filters) Get(name string) string { return f.Values.Get(name) }

// With is the address of this list with one filter changed, from the first page on.
func (f filters) With(name, value string) string {
	v := url.Values{}
	for key, values := range f.Values {
		if key != "cursor" && key != name && len(values) > 0 && values[0] != "" {
			v.Set(key, values[0])
		}
	}
	if value != "" {
		v.Set(name, value)
	}
	if len(v) == 0 {
		return f.path
	}
	return f.path + "?" + v.Encode()
}

// First is the address of the first page.
func (f filters) First() string { return f.With("cursor", "") }

// From is the address of the page that begins at a cursor of the store's; empty: there is none.
func (f filters) From(at string) string {
	if at == "" {
		return ""
	}
	return f.With("cursor", cursor.Sealed(f.path, at))
}

// begins is where the page begins, as the store says it; empty: it is the first.
func (f filters) begins() (string, error) {
	at, err := cursor.Opened(f.path, f.Get("cursor"))
	if err != nil {
		return "", invalid("cursor", f.Get("cursor"), "the cursor of the previous page")
	}
	return at, nil
}

// Set reports whether anything is filtered.
func (f filters) Set() bool {
	for key, values := range f.Values {
		if key != "cursor" && key != "since" && values[0] != "" {
			return true
		}
	}
	return false
}

// invalid is the error of a filter that cannot be understood.
func invalid(name, value, want string) error {
	return fmt.Errorf("%s %q: want %s (%w)", name, plain(value), want, job.ErrInvalid)
}

// parseID reads the id in a path or a filter; what is none is no job.
func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, fmt.Errorf("invalid id %q: %w", plain(text), job.ErrNotFound)
	}
	return id, nil
}

// defaultSince is how far back a filtered list looks that does not say: rare jobs among many are not searched for in all history
// unless somebody asks for that.
const defaultSince = "24h"

// since is a choice of how far back a list looks.
type since struct{ Value, Text string }

var sinces = []since{{"15m", "15 minutes"}, {"1h", "an hour"}, {"24h", "a day"}, {"168h", "a week"}}

// known reports whether the list of choices has a value.
func known(value string) bool {
	return value == "all" || slices.ContainsFunc(sinces, func(s since) bool { return s.Value == value })
}

// parseSince reads since when: a length such as 24h, a moment in RFC 3339, or all.
func parseSince(text string, now time.Time) (time.Time, error) {
	if text == "" || text == "all" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	return time.Time{}, invalid("since", text, "an age such as 90m, a time such as 2025-01-31T08:00:00Z, or all")
}

// jobFilter reads the filters of the list of jobs.
func jobFilter(f *filters, now time.Time) (s job.Filter, err error) {
	s = job.Filter{Kind: f.Get("kind"), Lane: f.Get("lane"), Subject: f.Get("subject"), Limit: perPage}
	if s.Cursor, err = f.begins(); err != nil {
		return s, err
	}
	switch state := f.Get("state"); state {
	case "":
	case "open":
		s.States = []job.State{job.AwaitingApproval, job.Pending, job.Running, job.Waiting}
	default:
		for name := range strings.SplitSeq(state, ",") {
			if !job.State(name).Known() {
				return s, invalid("state", name, "one of the seven states, or open")
			}
			s.States = append(s.States, job.State(name))
		}
	}
	for name, id := range map[string]*int64{"pipeline": &s.Pipeline, "parent": &s.Parent} {
		if value := f.Get(name); value != "" {
			if *id, err = strconv.ParseInt(value, 10, 64); err != nil || *id <= 0 {
				return s, invalid(name, value, "an id")
			}
		}
	}
	s.Reason, s.ErrorClass, s.ErrorCode = job.Reason(f.Get("reason")), job.ErrorClass(f.Get("error_class")), f.Get("error_code")
	if err := s.Validate(); err != nil {
		return s, fmt.Errorf("%s (%w)", err, job.ErrInvalid)
	}
	if f.Get("since") == "" && f.Set() && s.Pipeline == 0 && s.Parent == 0 {
		f.Values.Set("since", defaultSince)
	}
	s.Since, err = parseSince(f.Get("since"), now)
	return s, err
}

// pipelineFilter reads the filters of the list of pipelines.
func pipelineFilter(f *filters, now time.Time) (s storeview.PipelineFilter, err error) {
	s = storeview.PipelineFilter{Name: f.Get("name"), Limit: perPage}
	if s.Cursor, err = f.begins(); err != nil {
		return s, err
	}
	switch status := job.Status(f.Get("status")); status {
	case "":
	case job.PipelineRunning, job.PipelineSucceeded, job.PipelinePartial, job.PipelineFailed, job.PipelineCancelled:
		s.Statuses = []job.Status{status}
	default:
		return s, invalid("status", string(status), "one of the five statuses")
	}
	if f.Get("since") == "" && f.Set() {
		f.Values.Set("since", defaultSince)
	}
	s.Since, err = parseSince(f.Get("since"), now)
	return s, err
}

func filtersOf(r *http.Request, path string) *filters { return &filters{r.URL.Query(), path} }
