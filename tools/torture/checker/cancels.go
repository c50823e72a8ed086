package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// stuckAfter limits how long a handler may ignore the cancellation of its context before its job ends without it.
const stuckAfter = 10 * time.Second

// cancelReaches (I9) checks cancel and stop commands. The response must be correct. Once a job's cancel has been accepted, the job must end
// as cancelled, whether its handler succeeds or fails. If nothing disturbs the pod, the handler's context must be cancelled within a
// heartbeat interval plus one second, and the job must end soon after that.
func cancelReaches(v *view, f *Finding) {
	for i := range v.run.Calls {
		switch c := &v.run.Calls[i]; c.Verb {
		case "cancel", "stop":
			v.toldTheTruth(c, f)
		case "retry", "nice":
			v.steered(c, f)
		}
	}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		var open *claim
		nth := 0
		for i, e := range s.events {
			if claims(e) {
				open, nth = s.claims[nth], nth+1
			}
			if e.Event == "job.cancel_requested" {
				end := cancelWins(s, i, f)
				v.reaches(s, open, e, end, f)
			}
			if e.Event == "job.cancelled" && e.From == job.Running && e.Actor != "system" && e.Actor != "handler" { // an operator stopped the job
				v.reaches(s, open, e, e, f)
			}
		}
	}
}

func (v *view) toldTheTruth(c *history.Call, f *Finding) {
	s := v.stories[c.Job]
	if s == nil || s.job == nil || s.tampered || len(s.events) == 0 {
		return
	}
	by := c.Ended.Add(sameClock)
	asked, ends := false, map[job.State]bool{} // by the time of the response
	for _, e := range s.events {
		if !e.At.After(by) {
			asked = asked || e.Event == "job.cancel_requested" || e.Event == "job.cancelled"
			if e.To.Terminal() {
				ends[e.To] = true
			}
		}
	}
	last := s.events[len(s.events)-1]
	switch {
	case c.Outcome == history.OK && job.State(c.State).Terminal(): // covers jobs that had already ended
		f.judge(ends[job.State(c.State)], c.Job, "the response to call %d says that job %d is %s, but it was not by %s", c.N, c.Job, c.State, clock(c.Ended))
	case c.Outcome == history.OK:
		f.judge(asked && (last.To == job.Cancelled || !last.To.Terminal() || s.triedAgain()), c.Job, "the response to call %d says that job %d will be cancelled, but it is %s",
			c.N, c.Job, last.To)
	case c.Outcome == history.Refused && c.Code == "already_terminal":
		f.judge(len(ends) > 0, c.Job, "the response to call %d says that job %d had ended, but it had not by %s", c.N, c.Job, clock(c.Ended))
	case c.Outcome == history.Refused && c.Code == "not_found":
		f.judge(s.events[0].At.After(c.Began), c.Job, "the response to call %d says that job %d does not exist, but it did", c.N, c.Job)
	}
}

// cancelWins checks that a job ends as cancelled after event i, in which its cancel was accepted. It returns the event that ended the job,
// or nil if the job has not ended.
func cancelWins(s *story, i int, f *Finding) *job.Event {
	for _, e := range s.events[i+1:] {
		if e.To == e.From {
			continue
		}
		f.judge(e.To == job.Cancelled, s.id, "job %d: event %d (%s) after its cancel was accepted", s.id, number(e), e.Event)
		return e
	}
	f.Checked++
	return nil
}

// reaches checks how soon the handler of claim c learns of the cancel, and how soon the job ends.
func (v *view) reaches(s *story, c *claim, asked, end *job.Event, f *Finding) {
	if c == nil || c.start() == nil {
		return
	}
	b := v.podID(c.podID)
	told := asked.At.Add(v.run.Settings.Heartbeat + promptly + v.slack)
	if b.life == nil || c.start().T.After(told) || b.life.Ended.Before(told) || !v.trouble.calm(b.pod, asked.At, told) {
		return
	}
	heard := c.ctxDone != nil && !c.ctxDone.T.After(told) || c.done != nil && !c.done.T.After(told)
	f.judge(heard, s.id, "job %d: its cancel was accepted at %s, but its handler on %s had not been notified by %s", s.id, clock(asked.At), b.name(),
		clock(told))
	over := told.Add(stuckAfter + v.slack)
	if b.life.Ended.Before(over) || over.After(v.quietEnd()) || !v.trouble.calm(b.pod, asked.At, over) {
		return
	}
	f.judge(end != nil && !end.At.After(over), s.id, "job %d: its cancel was accepted at %s, but it had not ended by %s", s.id, clock(asked.At), clock(over))
}
