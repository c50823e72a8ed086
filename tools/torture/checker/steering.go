package checker

import (
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// steered checks the responses to operator retries and priority changes. If a response reports success, the job's history must record the
// change during the call. If the call was rejected, the stated reason must be true.
func (v *view) steered(c *history.Call, f *Finding) {
	s := v.stories[c.Job]
	if s == nil || s.job == nil || s.tampered {
		return
	}
	event := map[string]string{"retry": "job.operator_retry", "nice": "job.niced"}[c.Verb]
	done, ended := 0, false
	for _, e := range s.events {
		meanwhile := !e.At.Before(c.Began.Add(-sameClock)) && !e.At.After(c.Ended.Add(sameClock))
		if e.Event == event && meanwhile {
			done++
		}
		ended = ended || e.To.Terminal() && !e.At.After(c.Ended.Add(sameClock))
	}
	switch {
	case c.Outcome == history.OK:
		f.judge(done > 0, c.Job, "call %d: its %s of job %d succeeded, but the history of the job does not record it", c.N, c.Verb, c.Job)
	case c.Outcome == history.Refused && c.Code == "already_terminal":
		f.judge(ended, c.Job, "the response to call %d says that job %d had ended, but it had not by %s", c.N, c.Job, clock(c.Ended))
	case c.Outcome == history.Refused && c.Code == "not_found":
		f.judge(false, c.Job, "the response to call %d says that job %d does not exist, but it did", c.N, c.Job)
	}
	if c.Verb == "nice" && done == 1 && c.Outcome == history.OK {
		for i, e := range s.events {
			if e.Event == event && !e.At.Before(c.Began.Add(-sameClock)) && !e.At.After(c.Ended.Add(sameClock)) {
				f.judge(s.priorityAfter(i) == *c.Priority, c.Job, "call %d gave job %d priority %d, but it then had %d", c.N, c.Job, *c.Priority, s.priorityAfter(i))
			}
		}
	}
}

// priorityAfter returns a job's priority after its event i.
func (s *story) priorityAfter(i int) int {
	for _, e := range s.events[i+1:] {
		if e.Event == "job.niced" {
			return fieldsOf(e).Before
		}
	}
	return s.job.Priority
}

// triedAgain reports whether an operator retried the job or a step that follows it.
func (s *story) triedAgain() bool {
	at := s
	for range job.MaxChainSteps {
		for _, e := range at.events {
			if e.Event == "job.operator_retry" {
				return true
			}
		}
		if len(at.next) == 0 {
			break
		}
		at = at.next[0]
	}
	return false
}
