package checker

import "github.com/trapeze-run/trapeze/job"

// oneNextStep (I6) checks that each successful step has exactly one next step if its handler requested one or one was declared, and that no
// other job has a next step. A next step must match the request or declaration, carry the preceding steps' compensations, and be created in
// the transaction that ends its predecessor.
func oneNextStep(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		steps := stepsAfter(s.job)
		if len(steps) == 0 && len(s.next) == 0 {
			continue
		}
		want := 0
		if s.job.State == job.Succeeded && len(steps) > 0 {
			want = 1
		}
		if !f.judge(len(s.next) == want, s.id, "job %d (%s) is %s and has %d next steps, want %d", s.id, s.job.Kind, s.job.State,
			len(s.next), want) || want == 0 {
			continue
		}
		child, step := s.next[0], steps[0]
		if child.tampered || child.job == nil {
			continue
		}
		f.judge(child.job.Kind == step.Kind && sameJSON(child.job.Args, step.Args) && sameSteps(job.Following(child.job.Planned), steps[1:]), child.id,
			"job %d is the next step of job %d, but not the requested one: %s", child.id, s.id, child.job.Kind)
		undo := followsEnd(s.job, job.Failed)
		if one := demoArgsOf(s.job).Undo; one != nil && s.job.Kind == "demo.chain" {
			undo = append([]job.Step{*one}, undo...)
		}
		f.judge(sameSteps(followsEnd(child.job, job.Failed), undo), child.id, "job %d lacks compensations of job %d, the step before it", child.id, s.id)
		end, birth := lastEnd(s), creationOf(child)
		if end == nil || birth == nil {
			f.accuse(child.id, "job %d follows job %d, but the events that end one and create the other are missing", child.id, s.id)
			continue
		}
		f.judge(xid(end) == xid(birth), child.id, "job %d was created in transaction %s, but job %d before it ended in %s", child.id, xid(birth), s.id, xid(end))
	}
}

// lastEnd returns the last event that ended the job, or nil if there is none.
func lastEnd(s *story) *job.Event {
	for i := len(s.events) - 1; i >= 0; i-- {
		if s.events[i].To.Terminal() {
			return s.events[i]
		}
	}
	return nil
}

// creationOf returns the event that created the job, or nil if it is missing.
func creationOf(s *story) *job.Event {
	if len(s.events) == 0 || s.events[0].From != "" {
		return nil
	}
	return s.events[0]
}

// chainsComplete (I13) checks that a pipeline with several steps contains every step up to the current one, and that every earlier step has
// succeeded. The pipeline is done only when its last step succeeds. Any other outcome must be visible in the step that caused it.
func chainsComplete(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || s.job.ParentID != nil {
			continue
		}
		want := len(stepsAfter(s.job)) // the minimum; some kinds request further steps inside a chain
		if want == 0 && len(s.next) == 0 {
			continue
		}
		f.Checked++
		at, reached, broken := s, 0, false
		for len(at.next) > 0 && !broken {
			if at.job.State != job.Succeeded {
				f.accuse(at.id, "pipeline %d continues after step %d, job %d, which is %s", s.id, at.job.Step, at.id, at.job.State)
			}
			at = at.next[0]
			reached++
			broken = at.job == nil || at.tampered || reached > job.MaxChainSteps
			if !broken {
				want += len(askedFor(at.job))
			}
		}
		switch {
		case broken:
		case at.job.State == job.Succeeded && reached < want:
			f.accuse(at.id, "pipeline %d ends at step %d of %d, job %d, which succeeded", s.id, reached, want, at.id)
		case reached > want:
			f.accuse(at.id, "pipeline %d has %d steps after its first, but %d were requested", s.id, reached, want)
		case !at.job.State.Terminal() && v.run.Settings.Quiescent && !v.mayWait(at):
			f.accuse(at.id, "pipeline %d stopped at step %d of %d, job %d, which is %s", s.id, reached, want, at.id, at.job.State)
		}
	}
}

// stepsHaveParents (I18) checks that the parent of every step but the first exists and is the previous step in the same pipeline. The
// pipeline's first job must exist, and no pipeline may exceed the length limit.
func stepsHaveParents(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		j := s.job
		if j.ParentID == nil {
			if j.Step != 0 || j.PipelineID != j.ID {
				f.accuse(s.id, "job %d has no parent, but is step %d of pipeline %d", s.id, j.Step, j.PipelineID)
			}
			continue
		}
		if s.begins() {
			continue // checked by [failuresFollowed]
		}
		parent, first := v.stories[*j.ParentID], v.stories[j.PipelineID]
		if parent != nil && parent.tampered || first != nil && first.tampered {
			continue
		}
		if !f.judge(parent != nil && parent.job != nil, s.id, "the parent of job %d, job %d, does not exist", s.id, *j.ParentID) {
			continue
		}
		f.judge(parent.job.PipelineID == j.PipelineID && parent.job.Step+1 == j.Step && first != nil && first.job != nil, s.id,
			"job %d is step %d of pipeline %d, but its parent, job %d, is step %d of pipeline %d", s.id, j.Step, j.PipelineID, parent.id,
			parent.job.Step, parent.job.PipelineID)
		f.judge(j.Step <= job.MaxChainSteps, s.id, "job %d is step %d, beyond the limit of %d", s.id, j.Step, job.MaxChainSteps)
	}
}
