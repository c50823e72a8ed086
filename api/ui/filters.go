package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// filters holds the filters of a list, taken from its form or its URL.
type filters struct {
	url.Values
	path string // also the list's name in the API
}

// Get returns the value of one filter. Templates call it.
func (f filters) Get(name string) string { return f.Values.Get(name) }

// With returns the URL of the first page of this list with one filter changed.
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

// First returns the URL of the first page.
func (f filters) First() string { return f.With("cursor", "") }

// From returns the URL of the list page that begins at a cursor from the store, or an empty string if the cursor is empty.
func (f filters) From(at string) string {
	if at == "" {
		return ""
	}
	return f.With("cursor", text.EncodeCursor(f.path, at))
}

// begins returns the store's cursor at which the page begins. The cursor is empty for the first page.
func (f filters) begins() (string, error) {
	at, err := text.DecodeCursor(f.path, f.Get("cursor"))
	if err != nil {
		return "", invalid(fmt.Errorf("cursor: %w", err))
	}
	return at, nil
}

// Any reports whether any filter other than the period is set.
func (f filters) Any() bool {
	for key, values := range f.Values {
		if key != "cursor" && key != "since" && values[0] != "" {
			return true
		}
	}
	return false
}

// invalid returns the error for an invalid filter value.
func invalid(err error) error {
	return fmt.Errorf("%w: %s", job.ErrInvalid, plain(err.Error()))
}

// defaultSince is the default period of a filtered list. It keeps a search for rare jobs from reading the whole history unless the visitor
// asks for it.
const defaultSince = "24h"

// since is one choice for the period of a list.
type since struct{ Value, Text string }

var sinces = []since{{"15m", "15 minutes"}, {"1h", "an hour"}, {"24h", "a day"}, {"168h", "a week"}}

// known reports whether value is one of the choices.
func known(value string) bool {
	return value == "all" || slices.ContainsFunc(sinces, func(s since) bool { return s.Value == value })
}

// parseSince parses the start of a period: a duration such as 24h, an RFC 3339 time, or "all".
func parseSince(since string, now time.Time) (time.Time, error) {
	if since == "" || since == "all" {
		return time.Time{}, nil
	}
	at, err := text.ParseSince(since, now)
	if err != nil {
		err = invalid(fmt.Errorf("since: %w", err))
	}
	return at, err
}

// jobFilter parses the filters of the job list.
func jobFilter(f *filters, now time.Time) (s job.Filter, err error) {
	s = job.Filter{Kind: f.Get("kind"), Lane: f.Get("lane"), Subject: f.Get("subject"), Limit: perPage}
	if s.Cursor, err = f.begins(); err != nil {
		return s, err
	}
	switch state := f.Get("state"); state {
	case "":
	case "open":
		s.States = unfinished
	default:
		if s.States, err = text.ParseStates([]string{state}); err != nil {
			return s, invalid(err)
		}
	}
	for name, id := range map[string]*int64{"pipeline": &s.Pipeline, "parent": &s.Parent} {
		if value := f.Get(name); value != "" {
			if *id, err = text.ParseID(value); err != nil {
				return s, invalid(fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	s.Reason, s.ErrorClass, s.ErrorCode = job.Reason(f.Get("reason")), job.ErrorClass(f.Get("error_class")), f.Get("error_code")
	if err := s.Validate(); err != nil {
		return s, invalid(err)
	}
	if f.Get("since") == "" && f.Any() && s.Pipeline == 0 && s.Parent == 0 {
		f.Values.Set("since", defaultSince)
	}
	s.Since, err = parseSince(f.Get("since"), now)
	return s, err
}

// pipelineFilter parses the filters of the pipeline list.
func pipelineFilter(f *filters, now time.Time) (s storeview.PipelineFilter, err error) {
	s = storeview.PipelineFilter{Name: f.Get("name"), Limit: perPage}
	if s.Cursor, err = f.begins(); err != nil {
		return s, err
	}
	if status := f.Get("status"); status != "" {
		if s.Statuses, err = text.ParseStatuses([]string{status}); err != nil {
			return s, invalid(err)
		}
	}
	if f.Get("since") == "" && f.Any() {
		f.Values.Set("since", defaultSince)
	}
	s.Since, err = parseSince(f.Get("since"), now)
	return s, err
}

// filtersOf returns the filters in a request. A form in which several states are selected repeats the state parameter.
func filtersOf(r *http.Request, path string) *filters {
	values := r.URL.Query()
	if states := values["state"]; len(states) > 1 {
		values.Set("state", strings.Join(states, ","))
	}
	return &filters{values, path}
}

// unfinished lists the states of unfinished jobs.
var unfinished = []job.State{job.AwaitingApproval, job.Pending, job.Running, job.Waiting}

// Has reports whether the list's filter includes a state.
func (f filters) Has(state job.State) bool {
	asked := f.Get("state")
	return slices.Contains(strings.Split(asked, ","), string(state)) || asked == "open" && slices.Contains(unfinished, state)
}
