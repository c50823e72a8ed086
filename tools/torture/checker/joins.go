package checker

import (
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// joinsHold (I13b) checks fan-outs. A job that fans out must have as many branches as it requested, all of them created in the transaction
// in which the job began to wait. The job's outcome must follow from its policy and its branches' outcomes, and the job must not succeed
// before all branches have ended. A job that never waited must have no branches. [oneNextStep] checks the join's next step. A pipeline's
// status must match its jobs.
func joinsHold(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || s.job.Kind != "demo.fanout" && len(s.branches) == 0 {
			continue
		}
		var waits *job.Event
		for _, e := range s.events {
			if e.Event == "job.waiting" {
				waits = e
			}
		}
		if waits == nil {
			f.judge(len(s.branches) == 0, s.id, "job %d never waited, but has %d branches", s.id, len(s.branches))
			continue
		}
		a := demoArgsOf(s.job)
		f.judge(len(s.branches) == a.N, s.id, "job %d has %d branches, but requested %d", s.id, len(s.branches), a.N)
		for _, b := range s.branches {
			birth := creationOf(b)
			f.judge(birth != nil && xid(birth) == xid(waits), b.id, "job %d is a branch of job %d, but was not created when that job began to wait", b.id, s.id)
		}
		s.endsAsItsBranches(f, a.Policy == "fail_fast")
	}
	for i := range v.run.Pipelines {
		v.checkStatus(&v.run.Pipelines[i], f)
	}
}

// endsAsItsBranches checks how a job that waited for its branches ended.
func (s *story) endsAsItsBranches(f *Finding, failFast bool) {
	end := lastEnd(s)
	if end == nil || end.To == job.Cancelled || s.triedAgain() {
		return
	}
	failed, open := 0, 0
	for _, b := range s.branches {
		tail := b.tail()
		if tail.job == nil || tail.tampered || b.triedAgain() {
			return
		}
		over := lastEnd(tail)
		switch {
		case over == nil || over.At.After(end.At):
			open++
		case over.To != job.Succeeded:
			failed++
		}
	}
	if end.To == job.Succeeded {
		f.judge(open == 0, s.id, "job %d succeeded before %d of its %d branches had ended", s.id, open, len(s.branches))
		f.judge(failed == 0 || !failFast && failed < len(s.branches), s.id, "job %d succeeded, although %d of its %d branches had not", s.id, failed,
			len(s.branches))
		return
	}
	f.judge(failed > 0 && (failFast || failed == len(s.branches)), s.id, "job %d failed because of its branches, but only %d of %d had failed", s.id, failed,
		len(s.branches))
}

// tail returns the last step that follows a job, or the job itself if there are none.
func (s *story) tail() *story {
	at := s
	for range job.MaxChainSteps {
		if len(at.next) == 0 {
			break
		}
		at = at.next[0]
	}
	return at
}

// checkStatus compares a pipeline's reported status with the one implied by its jobs.
func (v *view) checkStatus(p *history.Pipeline, f *Finding) {
	first := v.stories[p.ID]
	if first == nil || first.job == nil {
		f.judge(false, p.ID, "pipeline %d has no first job", p.ID)
		return
	}
	last := first.tail()
	if last.job == nil {
		return
	}
	want := job.PipelineRunning
	if last.job.State.Terminal() {
		want = job.Status(last.job.State)
	}
	for _, j := range v.pipelines[p.ID] {
		if j.tampered {
			return
		}
		if p.Status == job.PipelinePartial && want == job.PipelineSucceeded && j.job.GroupID != nil && j.triedAgain() {
			want = job.PipelinePartial // the pipeline had failed, and retrying a branch after the end of its fan-out does not change that
		}
		if want == job.PipelineSucceeded && j.job.State != job.Succeeded {
			want = job.PipelinePartial
		}
		f.judge(want == job.PipelineRunning || j.job.State.Terminal(), j.id, "pipeline %d is %s, but its job %d is %s", p.ID, p.Status, j.id, j.job.State)
	}
	f.judge(p.Status == want, last.id, "pipeline %d has status %s, but its jobs make it %s", p.ID, p.Status, want)
}
