package checker

import "github.com/trapeze-run/trapeze/job"

// budgetsHold (I5): no try is one too many, a hand-back, a retry later and a crash spend none, no crash beyond the limit
// leads to another claim, and the job's row counts as its history does.
func budgetsHold(v *view, f *Finding) {
	most := v.run.Settings.MaxCrashes
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || len(s.claims) == 0 {
			continue
		}
		limit := 1 // of kinds and jobs that set none
		if s.job.MaxAttempts != nil {
			limit = *s.job.MaxAttempts
		}
		forgiven := s.job.Kind == "demo.retry_later" // its checkpoints forgive crashes
		attempt, crashes := 0, 0
		f.Checked++
		for _, e := range s.events {
			switch {
			case claims(e):
				if attempt++; attempt > limit {
					f.accuse(s.id, "job %d: event %d begins try %d of %d", s.id, number(e), attempt, limit)
				}
			case e.Event == "job.handed_back" || e.Event == "job.retry_later" || e.Event == "job.recovered":
				attempt--
			case e.Event == "job.operator_retry" && e.To != job.Waiting: // for its branches, without another try of its own
				attempt, crashes = 0, 0
			}
			if !recovers(e) {
				continue
			}
			now := fieldsOf(e).Crashes
			unstarted := now == crashes && mayBeAhead(s, e)
			if now != crashes+1 && !unstarted && !(forgiven && now >= 1 && now <= crashes) {
				f.accuse(s.id, "job %d: event %d counts crash %d after %d", s.id, number(e), now, crashes)
			}
			crashes = now
			switch {
			case e.To == job.Pending && crashes >= most && most > 0:
				f.accuse(s.id, "job %d: event %d lets it run again after %d crashes of %d", s.id, number(e), crashes, most)
			case e.To == job.Failed && crashes < most:
				f.accuse(s.id, "job %d: event %d convicts it after %d crashes of %d", s.id, number(e), crashes, most)
			}
		}
		if s.job.Attempt != attempt {
			f.accuse(s.id, "job %d counts %d tries, its history %d", s.id, s.job.Attempt, attempt)
		}
		if s.job.Crashes != crashes && !(forgiven && s.job.Crashes == 0) {
			f.accuse(s.id, "job %d counts %d crashes, its history %d", s.id, s.job.Crashes, crashes)
		}
	}
}

// mayBeAhead reports whether the claim that an event ends may have been made while no slot was free: the first of a job that has neither
// subject nor unique key and was pending before.
func mayBeAhead(s *story, end *job.Event) bool {
	first := s.claims[0]
	return first.end == end && !first.born && s.job.Subject == "" && s.job.UniqueKey == nil
}
