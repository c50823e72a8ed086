package checker

import (
	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// nothingLost (I1): every accepted submission and every job of the history is exported exactly once; nothing is there that
// nobody asked for, which is how a submission of unknown outcome that went in twice shows; and when the quiet tail ends,
// every job has ended or says what it waits for.
func nothingLost(v *view, f *Finding) {
	for i := range v.run.Calls {
		c := &v.run.Calls[i]
		if c.Verb != "submit" || c.Outcome != history.OK {
			continue
		}
		s := v.stories[c.Job]
		f.judge(s != nil && (s.job != nil || s.tampered), c.Job, "call %d submitted job %d (%s), was told so, and it is not there", c.N, c.Job, c.Kind)
	}
	v.nobodysJobs(f)
	for _, s := range v.ordered {
		switch {
		case s.tampered:
		case s.job == nil && len(s.events) > 0:
			f.judge(false, s.id, "job %d has %d events and is not there", s.id, len(s.events))
		case s.job == nil:
		case !f.judge(s.exported == 1, s.id, "job %d is there %d times", s.id, s.exported):
		case s.job.State.Terminal():
		default:
			f.judge(v.mayWait(s), s.id, "job %d (%s) is still %s when nothing is left to wait for", s.id, s.job.Kind, s.job.State)
		}
	}
}

// mayWait reports whether a job that has not ended by the end of the quiet tail has a reason that is stated: a moment that
// had not come, a kind without a handler, a lane or a gate that is shut; that it never ends by itself; or a branch of its that may wait.
func (v *view) mayWait(s *story) bool {
	if endless(s.job) {
		return true
	}
	if s.job.State == job.Waiting {
		for _, b := range s.branches {
			if tail := b.tail(); tail.job != nil && !tail.job.State.Terminal() && v.mayWait(tail) {
				return true
			}
		}
		return false
	}
	end, j := v.quietEnd(), s.job
	due := j.RunAfter != nil && j.RunAfter.After(end.Add(-v.prompt()))
	unknown := !demoKinds[j.Kind] && len(s.claims) == 0
	return j.State == job.Pending && (due || unknown || v.lanes.shut(j.Lane, end))
}

// nobodysJobs accuses jobs that no accepted submission accounts for, beyond those of unknown outcome: one for each
// idempotency key, or one for each submission without a key.
func (v *view) nobodysJobs(f *Finding) {
	accepted, settled := map[int64]bool{}, map[string]bool{}
	for i := range v.run.Calls {
		if c := &v.run.Calls[i]; c.Verb == "submit" && c.Outcome == history.OK {
			accepted[c.Job] = true
			if c.Key != "" {
				settled[c.Key] = true
			}
		}
	}
	for i := range v.run.Fires { // whose jobs [schedulesFire] looks at
		if id := v.run.Fires[i].Job; id != nil {
			accepted[*id] = true
		}
	}
	type content struct{ kind, subject, args string }
	allowed, counted := map[content]int{}, map[string]bool{}
	for i := range v.run.Calls {
		c := &v.run.Calls[i]
		if c.Verb != "submit" || c.Outcome != history.Unknown || settled[c.Key] || counted[c.Key] {
			continue
		}
		if c.Key != "" {
			counted[c.Key] = true
		}
		allowed[content{c.Kind, c.Subject, canonical(c.Args)}]++
	}
	for _, s := range v.ordered {
		if s.job == nil || s.job.ParentID != nil || accepted[s.id] || s.tampered {
			continue
		}
		key := content{s.job.Kind, s.job.Subject, canonical(s.job.Args)}
		allowed[key]--
		f.judge(allowed[key] >= 0, s.id, "job %d (%s, subject %q) is there, and no submission accounts for it", s.id, s.job.Kind, s.job.Subject)
	}
}
