package checker

import (
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// nothingLost (I1) checks that every accepted submission and every job in the history is exported exactly once. No job may exist that was
// not submitted; a submission with an unknown outcome, for example, must not create two jobs. By the end of the quiet tail, every job must
// have ended or state a reason for waiting.
func nothingLost(v *view, f *Finding) {
	for i := range v.run.Calls {
		c := &v.run.Calls[i]
		if c.Verb != "submit" || c.Outcome != history.OK {
			continue
		}
		s := v.stories[c.Job]
		f.judge(s != nil && (s.job != nil || s.tampered), c.Job, "call %d successfully submitted job %d (%s), which does not exist", c.N, c.Job, c.Kind)
	}
	v.unexplainedJobs(f)
	for _, s := range v.ordered {
		switch {
		case s.tampered:
		case s.job == nil && len(s.events) > 0:
			f.judge(false, s.id, "job %d has %d events but does not exist", s.id, len(s.events))
		case s.job == nil:
		case !f.judge(s.exported == 1, s.id, "job %d was exported %d times", s.id, s.exported):
		case s.job.State.Terminal():
		default:
			f.judge(v.mayWait(s), s.id, "job %d (%s) is still %s although nothing is left to wait for", s.id, s.job.Kind, s.job.State)
		}
	}
}

// mayWait reports whether a job has a valid reason not to have ended by the end of the quiet tail. The job may be due later, be of a kind
// without a handler, be in a closed lane, be held back by a paused queue, or never end on its own. A fan-out may also be waiting for a
// branch that has a valid reason.
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

// unexplainedJobs reports jobs that no accepted submission explains. A submission whose outcome is unknown explains one job. Several of
// these submissions with the same idempotency key explain one job in total.
func (v *view) unexplainedJobs(f *Finding) {
	accepted, settled := map[int64]bool{}, map[string]bool{}
	for i := range v.run.Calls {
		if c := &v.run.Calls[i]; c.Verb == "submit" && c.Outcome == history.OK {
			accepted[c.Job] = true
			if c.Key != "" {
				settled[c.Key] = true
			}
		}
	}
	for i := range v.run.Occurrences { // jobs submitted by schedules are checked by [schedulesFire]
		if id := v.run.Occurrences[i].Job; id != nil {
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
		f.judge(allowed[key] >= 0, s.id, "job %d (%s, subject %q) exists, but no submission explains it", s.id, s.job.Kind, s.job.Subject)
	}
}
