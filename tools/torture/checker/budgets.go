package checker

import "github.com/trapeze-run/trapeze/job"

// budgetsHold (I5) checks attempts and crashes. No job may exceed its attempt limit, and a hand-back, a snooze or a crash must not use up
// an attempt. A job that has reached its crash limit must not be claimed again. The job's row must agree with its history.
func budgetsHold(v *view, f *Finding) {
	most := v.run.Settings.MaxCrashes
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || len(s.claims) == 0 {
			continue
		}
		limit := 1 // the default for kinds and jobs without a limit
		if s.job.MaxAttempts != nil {
			limit = *s.job.MaxAttempts
		}
		forgiven := s.job.Kind == "demo.snooze" // its checkpoints reset the crash count
		attempt, crashes := 0, 0
		f.Checked++
		for _, e := range s.events {
			switch {
			case claims(e):
				if attempt++; attempt > limit {
					f.accuse(s.id, "job %d: event %d begins attempt %d of %d", s.id, number(e), attempt, limit)
				}
			case e.Event == "job.handed_back" || e.Event == "job.snoozed" || e.Event == "job.recovered":
				attempt--
			case e.Event == "job.operator_retry" && e.To != job.Waiting: // a retry to the waiting state starts no new attempt, because the job waits for its branches again
				attempt, crashes = 0, 0
			}
			if !recovers(e) {
				continue
			}
			now := fieldsOf(e).Crashes
			unstarted := now == crashes && mayBeAhead(s, e)
			if now != crashes+1 && !unstarted && !(forgiven && now >= 1 && now <= crashes) {
				f.accuse(s.id, "job %d: event %d records crash %d after crash %d", s.id, number(e), now, crashes)
			}
			crashes = now
			switch {
			case e.To == job.Pending && crashes >= most && most > 0:
				f.accuse(s.id, "job %d: event %d allows another run after %d of %d crashes", s.id, number(e), crashes, most)
			case e.To == job.Failed && crashes < most:
				f.accuse(s.id, "job %d: event %d fails it for crashing after %d of %d crashes", s.id, number(e), crashes, most)
			}
		}
		if s.job.Attempt != attempt {
			f.accuse(s.id, "job %d has attempt %d, but its history has %d", s.id, s.job.Attempt, attempt)
		}
		if s.job.Crashes != crashes && !(forgiven && s.job.Crashes == 0) {
			f.accuse(s.id, "job %d has %d crashes, but its history has %d", s.id, s.job.Crashes, crashes)
		}
	}
}

// mayBeAhead reports whether the claim that the event ends may have been made ahead of time, before a slot was free. This is possible only
// for the first claim of a pending job that has neither a subject nor a unique key.
func mayBeAhead(s *story, end *job.Event) bool {
	first := s.claims[0]
	return first.end == end && !first.born && s.job.Subject == "" && s.job.UniqueKey == nil
}
