package ui

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// attempt is one claim of a job, from there to whatever ended it.
type attempt struct {
	Fence  int64
	Pod    string
	Remote bool // it ran on a remote worker
	Began  time.Time
	Ended  *time.Time // nil: it runs
	Event  string     // what ended it
	Reason string     // of that
	Actor  string
	To     job.State
	X, W   int64 // where its bar is drawn, in thousandths of the time that is shown
}

// mostAttempts is how many claims are drawn, the latest ones.
const mostAttempts = 25

// attemptsOf draws the claims of a job: from its creation, or from the first event that was read, to its end or now.
func attemptsOf(h history, now time.Time) []attempt {
	var list []attempt
	for _, e := range h.Events {
		if e.From == job.Running && e.To != "" && len(list) > 0 {
			last := &list[len(list)-1]
			at := e.At
			last.Ended, last.Event, last.To, last.Reason, last.Actor = &at, e.Event, e.To, reasonIn(e.Fields), e.Actor
		}
		if e.To == job.Running && e.From != job.Running {
			one := attempt{Began: e.At, To: job.Running, Pod: text(e.Pod), Remote: e.Remote}
			if e.Fence != nil {
				one.Fence = *e.Fence
			}
			if one.Pod == "" && e.Boot != nil {
				one.Pod = *e.Boot
			}
			list = append(list, one)
		}
	}
	list = list[max(len(list)-mostAttempts, 0):]
	if len(list) == 0 {
		return nil
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

// place gives each attempt its place on a line of a thousand.
func place(list []attempt, from, to time.Time) {
	whole := max(to.Sub(from), time.Microsecond)
	at := func(t time.Time) int64 { return min(max(int64(1000*float64(t.Sub(from))/float64(whole)), 0), 1000) }
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

// Lasted says how long the attempt took, or has taken.
func (a attempt) Lasted(now time.Time) string { return lasted(now, &a.Began, a.Ended) }

// What says what ended the attempt.
func (a attempt) What() string { return strings.TrimPrefix(a.Event, "job.") }

// followerIn finds the id of the job that follows a failure in the fields of its event.
func followerIn(fields json.RawMessage) string {
	var f struct{ Job string }
	_ = json.Unmarshal(fields, &f)
	return f.Job
}

// reasonIn finds the reason in the fields of an event.
func reasonIn(fields json.RawMessage) string {
	var f struct{ Reason string }
	if json.Unmarshal(fields, &f) != nil {
		return ""
	}
	return f.Reason
}
