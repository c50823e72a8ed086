package runnertest

import (
	"slices"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Job returns the job with the given id.
func (h *Harness) Job(id int64) job.Job {
	h.t.Helper()
	j, err := h.client.Job(h.t.Context(), id)
	h.fatal(err, "read a job")
	return j
}

// Pipeline returns the pipeline that a job began.
func (h *Harness) Pipeline(id int64) job.Pipeline {
	h.t.Helper()
	p, err := h.client.Admin().Pipeline(h.t.Context(), id)
	h.fatal(err, "read a pipeline")
	return p
}

// Jobs returns the jobs of the given kinds, or of all kinds if none are given, in submission order.
func (h *Harness) Jobs(kinds ...string) []job.Job {
	h.t.Helper()
	var all []job.Job
	for f := (job.Filter{Children: new(true), Limit: 1000}); ; {
		page, err := view.Jobs(h.t.Context(), inside.Of(h.client).Store, f)
		h.fatal(err, "list the jobs")
		for _, j := range page.Jobs {
			if len(kinds) == 0 || slices.Contains(kinds, j.Kind) {
				all = append(all, j)
			}
		}
		if f.Cursor = page.Cursor; f.Cursor == "" {
			slices.Reverse(all) // the list is ordered newest first
			return all
		}
	}
}

// Events returns the events of a job, in order.
func (h *Harness) Events(id int64) []job.Event {
	h.t.Helper()
	events, err := h.client.Admin().Events(h.t.Context(), id, 0, 10_000)
	h.fatal(err, "read the history of job %d", id)
	return events
}

// Transitions returns the states that a job has gone through, in order, for example pending, running, succeeded.
func (h *Harness) Transitions(id int64) []job.State {
	h.t.Helper()
	var states []job.State
	for _, e := range h.Events(id) {
		if e.To != "" && (e.To != e.From || len(states) == 0) {
			states = append(states, e.To)
		}
	}
	return states
}

// RequireState fails the test immediately unless the job's state is want.
func (h *Harness) RequireState(id int64, want job.State) {
	h.t.Helper()
	j := h.Job(id)
	if j.State == want {
		return
	}
	why := ""
	if j.Reason != nil {
		why += ": " + string(*j.Reason)
	}
	if j.Error != nil {
		why += ": " + *j.Error
	}
	h.t.Fatalf("runnertest: job %d (%s) is %s, want %s%s", id, j.Kind, j.State, want, why)
}
