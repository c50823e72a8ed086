package checker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// schedulesFire (I19) checks schedules between consecutive changes. The checker itself computes the expected occurrences from the
// expression, up to the one that was next due when the schedule changed. No occurrence may be processed twice. An occurrence may be missing
// only if it was more than a minute late and a later occurrence counts it as missed. No occurrence may be processed early or, if a pod was
// working normally, long after it was due. Each occurrence that fired must have exactly one event and one job, the job must exist, and
// every scheduled job must belong to an occurrence.
func schedulesFire(v *view, f *Finding) {
	occurrences := map[string][]*history.Fire{}
	for i := range v.run.Occurrences {
		one := &v.run.Occurrences[i]
		occurrences[one.Schedule] = append(occurrences[one.Schedule], one)
	}
	turns := map[string][]*history.Schedule{}
	for i := range v.run.Schedules {
		one := &v.run.Schedules[i]
		turns[one.Schedule] = append(turns[one.Schedule], one)
	}
	for name, list := range turns {
		slices.SortFunc(list, func(a, b *history.Schedule) int { return cmp.Compare(a.N, b.N) })
		slices.SortFunc(occurrences[name], func(a, b *history.Fire) int { return a.FireAt.Compare(b.FireAt) })
		for i, one := range list {
			until := v.run.Settings.Ended
			var next *history.Schedule
			if i+1 < len(list) {
				next = list[i+1]
				until = next.Anchor
			}
			v.turn(one, next, between(occurrences[name], one.Anchor, until), f)
		}
	}
	v.occurrencesHaveJobs(f)
	v.occurrencesAreRecorded(f)
}

// between returns the regular occurrences after one time and up to another, excluding those that an operator triggered.
func between(list []*history.Fire, after, until time.Time) (found []*history.Fire) {
	for _, one := range list {
		if !one.Manual && one.FireAt.After(after) && !one.FireAt.After(until) {
			found = append(found, one)
		}
	}
	return found
}

// turn checks the occurrences of a schedule between one change and the next. next is nil if the schedule did not change again.
func (v *view) turn(s, next *history.Schedule, rows []*history.Fire, f *Finding) {
	if s.Paused {
		for _, r := range rows {
			f.judge(false, jobOf(r), "schedule %q fired for %s while it was paused", s.Schedule, clock(r.FireAt))
		}
		return
	}
	// At the end of the run, occurrences are allowed as long as any pod is running, but are no longer required once the first pod has been
	// told to shut down.
	until, by, undecided := v.run.Settings.Ended, v.quietEnd(), (*time.Time)(nil)
	if next != nil {
		until, by, undecided = next.At, next.At, next.Undecided
	}
	at := 0
	var open []time.Time // expected occurrences that have not been found yet
	for _, fire := range occurrencesOf(s, until) {
		if undecided != nil && !fire.Before(*undecided) || next == nil && at == len(rows) {
			v.inTime(s, fire, by, f)
			break
		}
		open = append(open, fire)
		if at == len(rows) || !rows[at].FireAt.Equal(fire) {
			continue
		}
		v.decided(rows[at], open[:len(open)-1], f)
		open, at = nil, at+1
	}
	for _, fire := range open {
		f.judge(false, 0, "schedule %q, %s after %s, skipped the occurrence for %s and continued with later ones", s.Schedule, s.Expression, clock(s.Anchor), clock(fire))
	}
	for _, r := range rows[at:] {
		f.judge(false, jobOf(r), "schedule %q, %s after %s, fired for %s, which its expression does not include or which was reported as undecided", s.Schedule, s.Expression,
			clock(s.Anchor), clock(r.FireAt))
	}
}

// decided checks the row of an occurrence. left contains the preceding occurrences that have no row.
func (v *view) decided(r *history.Fire, left []time.Time, f *Finding) {
	f.judge(len(left) == r.Missed, jobOf(r), "schedule %q: the occurrence for %s reports %d missed occurrences before it, but there are %d", r.Schedule,
		clock(r.FireAt), r.Missed, len(left))
	for _, fire := range left {
		f.judge(r.DecidedAt.Sub(fire) > job.MissedAfter, jobOf(r), "schedule %q: the occurrence for %s was replaced by a later one only %s after it was due", r.Schedule, clock(fire),
			r.DecidedAt.Sub(fire))
	}
	f.judge(!r.DecidedAt.Before(r.FireAt), jobOf(r), "schedule %q fired for %s at %s", r.Schedule, clock(r.FireAt), clock(r.DecidedAt))
	f.judge(r.Outcome == string(job.OccurrenceFired) && r.Job != nil, jobOf(r), "schedule %q: the occurrence for %s is %s, although nothing prevented its job", r.Schedule,
		clock(r.FireAt), r.Outcome)
	f.judge(!v.late(r.FireAt, r.DecidedAt), jobOf(r), "schedule %q fired for %s at %s, although a pod was well throughout", r.Schedule, clock(r.FireAt),
		clock(r.DecidedAt))
}

// inTime checks the first occurrence that had not been processed by the given time.
func (v *view) inTime(s *history.Schedule, fire, by time.Time, f *Finding) {
	f.judge(!v.late(fire, by), 0, "schedule %q had not fired for %s by %s, although a pod was well throughout", s.Schedule, clock(fire), clock(by))
}

// late reports whether an occurrence was left unprocessed for longer than a healthy pod may need to notice that it is due.
func (v *view) late(fire, by time.Time) bool {
	enough := v.prompt() + v.run.Settings.Heartbeat
	return by.Sub(fire) > enough && slices.ContainsFunc(v.lives, func(l *life) bool {
		return l.knows("demo.noop") && v.able(l, fire, fire.Add(enough))
	})
}

// occurrencesOf computes the occurrences of a schedule from its anchor up to the given time. It supports "@every D", counted from the anchor, and
// six-field cron expressions for every Nth second of a minute.
func occurrencesOf(s *history.Schedule, until time.Time) (list []time.Time) {
	if text, ok := strings.CutPrefix(s.Expression, "@every "); ok {
		every, err := time.ParseDuration(text)
		if err != nil || every <= 0 {
			return nil
		}
		for at := s.Anchor.Add(every); !at.After(until); at = at.Add(every) {
			list = append(list, at)
		}
		return list
	}
	var n int
	if _, err := fmt.Sscanf(s.Expression, "*/%d * * * * *", &n); err != nil || n <= 0 {
		return nil
	}
	for at := time.Unix(s.Anchor.Unix()+1, 0); !at.After(until); at = at.Add(time.Second) {
		if at.Unix()%60%int64(n) == 0 {
			list = append(list, at)
		}
	}
	return list
}

// occurrencesHaveJobs checks that the job of each occurrence exists and belongs to no other occurrence. No other scheduled jobs may exist.
func (v *view) occurrencesHaveJobs(f *Finding) {
	of := map[int64]*history.Fire{}
	for i := range v.run.Occurrences {
		r := &v.run.Occurrences[i]
		if r.Job == nil {
			continue
		}
		other := of[*r.Job]
		of[*r.Job] = r
		if other != nil {
			f.judge(false, *r.Job, "schedule %q: the occurrences for %s and %s have the same job", r.Schedule, clock(other.FireAt), clock(r.FireAt))
		}
		if s := v.stories[*r.Job]; s == nil || !s.tampered {
			f.judge(s != nil && s.job != nil && s.job.Kind == "demo.noop" && s.job.ParentID == nil, *r.Job, "schedule %q: the occurrence for %s created job %d, which does not exist",
				r.Schedule, clock(r.FireAt), *r.Job)
		}
	}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || s.job.ParentID != nil || len(s.events) == 0 || s.events[0].Actor != "system" {
			continue
		}
		f.judge(of[s.id] != nil, s.id, "job %d was created by the scheduler at %s, but belongs to no fire", s.id, clock(s.events[0].At))
	}
}

// occurrencesAreRecorded checks that the history records each occurrence exactly once.
func (v *view) occurrencesAreRecorded(f *Finding) {
	type told struct {
		Schedule string    `json:"schedule"`
		FireAt   time.Time `json:"fire_at"`
	}
	times := map[string]int{}
	of := func(name string, at time.Time) string { return fmt.Sprint(name, " ", at.UnixMicro()) }
	for i := range v.run.Events {
		e := &v.run.Events[i]
		var one told
		if (e.Event == "schedule.fired" || e.Event == "schedule.missed") && json.Unmarshal(e.Fields, &one) == nil {
			times[of(one.Schedule, one.FireAt)]++
		}
	}
	for i := range v.run.Occurrences {
		r := &v.run.Occurrences[i]
		n := times[of(r.Schedule, r.FireAt)]
		f.judge(n == 1, jobOf(r), "schedule %q: the history has %d records of the occurrence for %s", r.Schedule, n, clock(r.FireAt))
	}
}

// jobOf returns the ID of an occurrence's job, or 0 if it has none.
func jobOf(r *history.Fire) int64 {
	if r.Job == nil {
		return 0
	}
	return *r.Job
}
