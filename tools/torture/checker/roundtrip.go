package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// roundTrip (I21) checks that a job matches its submission in kind, subject, key, lane, priority, arguments and declared steps. The arguments
// must be the same JSON value down to the last digit. The result of demo.echo must equal its arguments. Submissions that share a unique key
// may differ, but one of them must match the job.
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
		// If the outcome of the submission that created the job is unknown, the job need not match any submission that received a response.
		f.judge(wrong == nil || shared && (fits || v.unknownWith(wrong.Unique)), id, "job %d differs from what call %d submitted: %s", id,
			callNo(wrong), what)
	}
	for _, s := range v.ordered {
		if s.job != nil && !s.tampered && s.job.Kind == "demo.echo" && s.job.State == job.Succeeded {
			f.judge(sameJSON(s.job.Args, s.job.Result), s.id, "job %d has arguments %.100s but result %.100s", s.id, s.job.Args, s.job.Result)
		}
	}
}

// differs names the first property in which a job differs from its submission, or returns "" if there is none.
func differs(c *history.Call, s *story) string {
	j, priority := s.job, s.priorityAt(time.Time{}) // the priority at the job's creation
	var declared []job.Step
	if c.Chain != nil {
		declared = c.Chain
	}
	switch {
	case c.Kind != j.Kind:
		return "kind"
	case c.Subject != j.Subject:
		return "subject"
	case c.JobKey != s.key:
		return "key"
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

// unknownWith reports whether the outcome of any submission with the given unique key is unknown.
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
