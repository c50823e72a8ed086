package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// roundTrip (I21): a job is what was submitted: its kind, subject, lane, priority, arguments and declared steps, the
// arguments as the same JSON value with every digit; and what demo.echo was given is what it answered. Submissions that
// share a unique key may differ: one of them is the job's.
func roundTrip(v *view, f *Finding) {
	for id, calls := range v.calls {
		s := v.stories[id]
		if s == nil || s.job == nil || s.tampered {
			continue
		}
		var wrong *history.Call
		what, fits, judged := "", false, false
		for _, c := range calls {
			if c.Verb != "submit" || c.Outcome != history.OK {
				continue
			}
			judged = true
			if differs := differs(c, s); differs == "" {
				fits = true
			} else if wrong == nil || c.Unique == "" {
				wrong, what = c, differs
			}
		}
		if !judged {
			continue
		}
		shared := wrong != nil && wrong.Unique != "" && s.job.UniqueKey != nil && *s.job.UniqueKey == wrong.Unique
		// Whoever made the job may have been told nothing: then it is as one of those that were not.
		f.judge(wrong == nil || shared && (fits || v.unknownWith(wrong.Unique)), id, "job %d is not what call %d submitted: its %s differs", id,
			callNo(wrong), what)
	}
	for _, s := range v.ordered {
		if s.job != nil && !s.tampered && s.job.Kind == "demo.echo" && s.job.State == job.Succeeded {
			f.judge(sameJSON(s.job.Args, s.job.Result), s.id, "job %d was given %.100s and answered %.100s", s.id, s.job.Args, s.job.Result)
		}
	}
}

// differs names what of a job is not as it was submitted, "" when all is.
func differs(c *history.Call, s *story) string {
	j, priority := s.job, s.priorityAt(time.Time{}) // as it was born
	var declared []job.Step
	if c.Chain != nil {
		declared = c.Chain
	}
	switch {
	case c.Kind != j.Kind:
		return "kind"
	case c.Subject != j.Subject:
		return "subject"
	case c.Lane != "" && c.Lane != j.Lane:
		return "lane"
	case c.Priority != nil && *c.Priority != priority:
		return "priority"
	case c.Priority == nil && priority != job.DefaultPriority:
		return "priority"
	case !sameJSON(c.Args, j.Args):
		return "args"
	case !sameSteps(declared, job.Following(j.Planned)):
		return "chain"
	}
	return ""
}

// unknownWith reports whether a submission with a unique key was left without an answer.
func (v *view) unknownWith(unique string) bool {
	for i := range v.run.Calls {
		if c := &v.run.Calls[i]; c.Verb == "submit" && c.Outcome == history.Unknown && c.Unique == unique {
			return true
		}
	}
	return false
}

func callNo(c *history.Call) int {
	if c == nil {
		return 0
	}
	return c.N
}
