package checker

// endsOnce (I2) checks that a job's history has one end per epoch. Only an on-failure event or an operator's retry may follow the end, and
// the job's row must agree with its history.
func endsOnce(v *view, f *Finding) {
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || len(s.events) == 0 && !s.job.State.Terminal() {
			continue
		}
		f.Checked++
		epoch, ends := 1, 0
		for _, e := range s.events {
			switch {
			case e.Event == "job.followed" && ends == 1 && e.From == e.To: // checked by [failuresFollowed]
			case e.To.Terminal() && e.From.Terminal():
				f.accuse(s.id, "job %d: event %d (%s) after its end", s.id, number(e), e.Event)
			case e.To.Terminal():
				if ends++; ends > 1 {
					f.accuse(s.id, "job %d ends %d times in epoch %d, again with event %d (%s)", s.id, ends, epoch, number(e), e.Event)
				}
			case e.From.Terminal():
				if e.Actor == "system" || e.Actor == "handler" {
					f.accuse(s.id, "job %d: event %d (%s) by %s takes it out of %s", s.id, number(e), e.Event, e.Actor, e.From)
				}
				epoch, ends = epoch+1, 0
			case ends > 0:
				f.accuse(s.id, "job %d: event %d (%s) after its end", s.id, number(e), e.Event)
			}
		}
		j := s.job
		switch ended := j.State.Terminal(); {
		case ended && ends == 0:
			f.accuse(s.id, "job %d is %s, but its history has no end", s.id, j.State)
		case !ended && ends > 0:
			f.accuse(s.id, "job %d is %s, but its history has an end", s.id, j.State)
		case ended && (j.FinishedAt == nil || j.Outcome == nil || j.Reason == nil):
			f.accuse(s.id, "job %d is %s without a finish time, an outcome or a reason", s.id, j.State)
		case j.Epoch != epoch:
			f.accuse(s.id, "job %d is in epoch %d, but its history is in epoch %d", s.id, j.Epoch, epoch)
		}
	}
}
