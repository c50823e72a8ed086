package ui

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

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
	for _, name := range []string{"kind", "lane", "subject", "pipeline", "parent", "reason", "error_class", "error_code", "since"} {
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
