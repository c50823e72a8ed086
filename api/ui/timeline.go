package ui

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// history is a job and its events, oldest first.
type history struct {
	job.JobRow
	Events  []job.Event
	Missing int // number of earlier events that were not read
	Fan     *job.TreeFanOut
	PodName string
	// Followed lists the IDs of the jobs that were started because this job failed.
	Followed []string
	Worker   *store.WorkerRow // the remote worker that last ran the job; nil if a pod did, or if the row was deleted
	InChain  bool             // the job's pipeline has more than one job
}

// attempt is one claim of a job and the event that ended it.
type attempt struct {
	Fence  int64
	Pod    string
	Remote bool // a remote worker ran it
	Began  time.Time
	Ended  *time.Time // nil while the attempt is running
	Event  string     // the event that ended the attempt
	Reason string     // the reason in that event
	Actor  string
	To     job.State
	Error  string // first line of the error that ended the attempt, or empty
	Detail string // the whole error with its stack, if longer than one line
	X, W   int64  // position and width of the bar, in thousandths of the displayed time
}

// mostAttempts is the maximum number of claims drawn. Earlier ones are left out.
const mostAttempts = 25

// attemptsOf returns a job's claims, for drawing. The time axis begins with the job's creation or, if earlier attempts may have been left
// out, with the first attempt drawn. It ends with the job or now.
func attemptsOf(h history, now time.Time) []attempt {
	var list []attempt
	for _, e := range h.Events {
		if e.From == job.Running && e.To != "" && len(list) > 0 {
			last := &list[len(list)-1]
			at := e.At
			last.Ended, last.Event, last.To, last.Reason, last.Actor = &at, e.Event, e.To, fieldIn(e.Fields, "reason"), e.Actor
			last.fail(orEmpty(e.Message))
		}
		if e.Event == "job.operator_retry" && len(list) > 0 && list[len(list)-1].To.Terminal() {
			list[len(list)-1].fail(fieldIn(e.Fields, "error"))
		}
		if e.To == job.Running && e.From != job.Running {
			one := attempt{Began: e.At, To: job.Running, Pod: orEmpty(e.Pod), Remote: e.Remote}
			if e.Fence != nil {
				one.Fence = *e.Fence
			}
			if one.Pod == "" && e.PodID != nil {
				one.Pod = *e.PodID
			}
			list = append(list, one)
		}
	}
	list = list[max(len(list)-mostAttempts, 0):]
	if len(list) == 0 {
		return nil
	}
	if last := &list[len(list)-1]; h.State.Terminal() && last.To.Terminal() {
		last.fail(orEmpty(h.Error)) // the event that ends the attempt holds only the beginning of a long error
	}
	from, to := h.CreatedAt, now
	if h.Missing > 0 || len(list) == mostAttempts {
		from = list[0].Began
	}
	if h.FinishedAt != nil && h.State.Terminal() {
		to = *h.FinishedAt
	}
	place(list, from, to)
	slices.Reverse(list)
	return list
}

// fail sets the error of an attempt, unless text is empty.
func (a *attempt) fail(text string) {
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	a.Error, _, _ = strings.Cut(text, "\n")
	if a.Detail = ""; a.Error != text || len(text) > failures.MaxBytes {
		a.Detail = text
	}
}

// axis returns the function that maps times to positions on an axis of length 1000.
func axis(from, to time.Time) func(time.Time) int64 {
	whole := max(to.Sub(from), time.Microsecond)
	return func(t time.Time) int64 { return min(max(int64(1000*float64(t.Sub(from))/float64(whole)), 0), 1000) }
}

// place sets the position of each attempt on an axis of length 1000.
func place(list []attempt, from, to time.Time) {
	at := axis(from, to)
	for i := range list {
		a := &list[i]
		end := to
		if a.Ended != nil {
			end = *a.Ended
		}
		a.X = min(at(a.Began), 994)
		a.W = min(max(at(end)-a.X, 6), 1000-a.X)
	}
}

// Lasted formats the duration of the attempt, up to now if it is running.
func (a attempt) Lasted(now time.Time) string { return lasted(now, &a.Began, a.Ended) }

// What returns the name of the event that ended the attempt.
func (a attempt) What() string { return strings.TrimPrefix(a.Event, "job.") }

// fieldIn returns a text in the fields of an event, such as its reason.
func fieldIn(fields json.RawMessage, name string) string {
	var all map[string]any
	_ = json.Unmarshal(fields, &all) // an event without fields has none
	text, _ := all[name].(string)
	return text
}
