package checker

import (
	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// joinsHold (I13b): a job that fans out has as many branches as it asked for, born in the transaction in which it began to wait; it
// ends as they do and its policy says, not before all of them where it succeeds; and one that never waited has none. What follows
// it, once, is [oneChild]'s matter. A pipeline says of itself what its jobs come to.
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
			f.judge(len(s.branches) == 0, s.id, "job %d never waited, and has %d branches", s.id, len(s.branches))
			continue
		}
		a := demoArgsOf(s.job)
		f.judge(len(s.branches) == a.N, s.id, "job %d has %d branches, and asked for %d", s.id, len(s.branches), a.N)
		for _, b := range s.branches {
			birth := birthOf(b)
			f.judge(birth != nil && xid(birth) == xid(waits), b.id, "job %d is a branch of job %d, and was not born when that began to wait", b.id, s.id)
		}
		s.endsAsItsBranches(f, a.Policy == "fail_fast")
	}
	for i := range v.run.Pipelines {
		v.saysWhatItIs(&v.run.Pipelines[i], f)
	}
}

// endsAsItsBranches judges the end of a job that waited for its branches.
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
	f.judge(failed > 0 && (failFast || failed == len(s.branches)), s.id, "job %d failed for its branches, of which %d of %d had failed", s.id, failed,
		len(s.branches))
}

// tail is the last job of what follows a job.
func (s *story) tail() *story {
	at := s
	for range job.MaxChainSteps {
		if len(at.children) == 0 {
			break
		}
		at = at.children[0]
	}
	return at
}

// saysWhatItIs compares what a pipeline says of itself with what its jobs come to.
func (v *view) saysWhatItIs(p *history.Pipeline, f *Finding) {
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
			want = job.PipelinePartial // it had failed; one that is run again when its fan-out has ended is on its own
		}
		if want == job.PipelineSucceeded && j.job.State != job.Succeeded {
			want = job.PipelinePartial
		}
		f.judge(want == job.PipelineRunning || j.job.State.Terminal(), j.id, "pipeline %d is %s, and its job %d %s", p.ID, p.Status, j.id, j.job.State)
	}
	f.judge(p.Status == want, last.id, "pipeline %d says that it is %s, by its jobs it is %s", p.ID, p.Status, want)
}
