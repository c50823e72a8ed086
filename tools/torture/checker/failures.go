package checker

import (
	"encoding/json"
	"strconv"

	"github.com/trapeze-run/trapeze/job"
)

// failuresFollowed (I13c) checks on-failure jobs. When a job fails or is cancelled, the matching on-failure steps of its plan must form one
// pipeline. The next event must name the pipeline's first job, which must have been created in the same transaction. A job without matching
// steps must have no on-failure job, and every on-failure job must be named in an event.
func failuresFollowed(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		named := map[int64]bool{}
		for i, e := range s.events {
			if e.To != job.Failed && e.To != job.Cancelled || e.From == e.To {
				continue
			}
			want := followsEnd(s.job, e.To)
			var told *job.Event
			if i+1 < len(s.events) && s.events[i+1].Event == "job.followed" {
				told = s.events[i+1]
			}
			if told == nil && len(want) == 0 {
				continue
			}
			if told != nil && len(want) == 0 && e.To == job.Cancelled && s.job.Kind == "demo.chain" {
				if undo := demoArgsOf(s.job).Undo; undo != nil {
					want = []job.Step{*undo} // the handler had returned before the cancel took effect
				}
			}
			if !f.judge(told != nil && len(want) > 0, s.id, "job %d (%s) ends %s, and %d steps must follow; followed: %t", s.id, s.job.Kind, e.To, len(want),
				told != nil) {
				continue
			}
			id, _ := strconv.ParseInt(fieldsOf(told).Job, 10, 64)
			named[id] = true
			next := v.stories[id]
			if next != nil && next.tampered {
				continue
			}
			if !f.judge(next != nil && next.job != nil && next.begins() && next.job.ParentID != nil && *next.job.ParentID == s.id, s.id,
				"job %d must be followed by job %d, which does not exist or follows another job", s.id, id) {
				continue
			}
			f.judge(next.job.Kind == want[0].Kind && sameJSON(next.job.Args, want[0].Args) && sameSteps(job.Following(next.job.Planned), want[1:]), id,
				"job %d follows job %d, but is not the requested step: %s", id, s.id, next.job.Kind)
			birth := creationOf(next)
			f.judge(birth != nil && xid(birth) == xid(e) && xid(told) == xid(e), id, "job %d follows job %d, but was not created in the transaction that ended it", id, s.id)
		}
		for _, one := range s.onFail {
			f.judge(named[one.id] || one.tampered, one.id, "job %d follows job %d, whose history does not name it", one.id, s.id)
		}
	}
}

// followsEnd lists the steps of a job's plan that follow if the job ends in the given state. The job's own on-failure steps come first,
// followed by those of the preceding steps.
func followsEnd(j *job.JobRow, end job.State) (steps []job.Step) {
	var plan, others []job.Step
	_ = json.Unmarshal(j.Planned, &plan)
	own := true // true until the first step that follows a success; on-failure steps after that one belong to it
	for _, s := range plan {
		switch {
		case s.Follows():
			own = false
		case end == job.Cancelled && s.When != job.OnFailureOrCancel:
		case !s.Own:
			others = append(others, s)
		case own:
			steps = append(steps, s)
		}
	}
	return append(steps, others...)
}
