package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
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
	s = job.Filter{Kind: f.Get("kind"), Lane: f.Get("lane"), Subject: f.Get("subject"), Key: f.Get("key"), Limit: perPage}
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

// many is a button that acts on all jobs matching a filter. Clicking it shows a preview first.
type many struct {
	Path   string // relative to the API's root
	Label  string
	Filter string // the filter as JSON, for the request body
	Words  string // the filter in words
	Danger bool
}

// mostWords is the maximum displayed length of a filter value, in characters.
const mostWords = 60

// manyOf returns the buttons that act on all jobs matching a list's filter. It returns none for an unfiltered list or a search, and omits
// buttons that would not affect any job in the selected states.
func (v visitor) manyOf(f *filters) (list []many) {
	if !f.Any() && f.Get("since") == "" || f.Get("search") != "" { // commands ignore the search, so they would affect other jobs too
		return nil
	}
	var states []job.State
	if asked := f.Get("state"); asked != "" && asked != "open" {
		for name := range strings.SplitSeq(asked, ",") {
			states = append(states, job.State(name))
		}
	} else if asked == "" {
		states = job.Filter{Reason: job.Reason(f.Get("reason")), ErrorClass: job.ErrorClass(f.Get("error_class")), ErrorCode: f.Get("error_code")}.Possible()
	}
	open := slices.DeleteFunc(slices.Clone(states), job.State.Terminal)
	over := slices.DeleteFunc(slices.Clone(states), func(s job.State) bool { return s != job.Failed && s != job.Cancelled })
	offer := func(needs access.Permission, means bool, usual string, of []job.State, m many) {
		if !means || !v.Can(string(access.WorkersManage)) || !v.Can(string(needs)) {
			return
		}
		if len(of) > 0 {
			usual = ""
		}
		if m.Filter, m.Words = f.command(of); m.Filter != "" {
			m.Words = usual + m.Words
			list = append(list, m)
		}
	}
	offer(access.JobsCancel, len(states) == 0 || len(open) > 0, "unfinished, ", open, many{Path: "admin/workers/jobs/cancel", Label: "Cancel", Danger: true})
	offer(access.JobsRetry, len(states) == 0 && f.Get("state") == "" || len(over) > 0, "failed, ", over, many{Path: "admin/workers/jobs/retry", Label: "Retry"})
	return list
}

// command returns the filter, restricted to the given states, as JSON for the request body and in words. Both are empty if the filter would
// match every job.
func (f filters) command(states []job.State) (body, words string) {
	fields, said := map[string]any{}, []string{}
	if len(states) > 0 {
		names := []string{}
		for _, s := range states {
			names = append(names, calls(s))
		}
		fields["state"], said = states, append(said, strings.Join(names, " or "))
	}
	for _, name := range []string{"kind", "lane", "subject", "key", "pipeline", "parent", "reason", "error_class", "error_code", "since"} {
		if value := f.Get(name); value != "" && (name != "since" || value != "all") {
			fields[name], said = value, append(said, strings.ReplaceAll(name, "_", " ")+" "+short(mostWords, value))
		}
	}
	if len(fields) == 0 {
		return "", ""
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return "", ""
	}
	return string(raw), strings.Join(said, ", ")
}
