package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// around is how far a timeline extends into the fleet's history before and after its job's history.
const around = 5 * time.Second

// moment is one line of a timeline.
type moment struct {
	at   time.Time
	file string
	what string
}

// Timeline returns everything recorded about a job in chronological order, one line per entry. Each line shows the time since the run began
// and the source file. The entries are the job's events, the ledger lines of its handlers, calls about the job, faults, and the processes
// of the pods that ran it. They also show when samples began and stopped reporting the job as running. Job 0 has no timeline.
func Timeline(run *history.Run, jobID int64) string {
	v := look(run)
	s := v.stories[jobID]
	if jobID == 0 || s == nil {
		return ""
	}
	list := slices.Concat(s.ownMoments(), v.callMoments(jobID), v.sampleMoments(jobID))
	if len(list) == 0 {
		return s.headline() + "\n"
	}
	order := func(a, b moment) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.file, b.file)) }
	from, to := slices.MinFunc(list, order).at.Add(-around), slices.MaxFunc(list, order).at.Add(around)
	list = append(list, v.podMoments(s, from, to)...)
	list = append(list, v.faultMoments(s, from, to)...)
	slices.SortStableFunc(list, order)
	var text strings.Builder
	text.WriteString(s.headline() + "\n")
	for _, m := range list {
		since := m.at.Sub(run.Settings.Began).Seconds()
		fmt.Fprintf(&text, "%s %+9.3fs  %-8s %s\n", clock(m.at), since, m.file, m.what)
	}
	return text.String()
}

// headline describes the job's row in one line.
func (s *story) headline() string {
	j := s.job
	if j == nil {
		return fmt.Sprintf("job %d, which was not exported", s.id)
	}
	text := fmt.Sprintf("job %d, %s %.200s, lane %s, subject %q, priority %d: %s, fence %d, attempt %d, crashes %d, pipeline %d step %d", j.ID, j.Kind,
		j.Args, j.Lane, j.Subject, j.Priority, j.State, j.Fence, j.Attempt, j.Crashes, j.PipelineID, j.Step)
	if j.Reason != nil {
		text += ", " + string(*j.Reason)
	}
	if j.Error != nil {
		text += fmt.Sprintf(", %.200q", *j.Error)
	}
	if s.tampered {
		text += ", tampered with by a fault"
	}
	return text
}

func (s *story) ownMoments() (list []moment) {
	for _, e := range s.events {
		what := fmt.Sprintf("%3d %s %s→%s", number(e), e.Event, e.From, e.To)
		if e.Fence != nil {
			what += fmt.Sprintf(" fence %d", *e.Fence)
		}
		if e.PodID != nil {
			what += " pod " + short(*e.PodID)
		}
		if e.Pod != nil {
			what += " of " + *e.Pod
		}
		if e.Actor != "system" {
			what += " by " + e.Actor
		}
		if e.Message != nil {
			what += fmt.Sprintf(" %.100q", *e.Message)
		}
		if len(e.Fields) > 0 && string(e.Fields) != "null" {
			what += fmt.Sprintf(" %.200s", e.Fields)
		}
		list = append(list, moment{e.At, "events", what + " xid " + xid(e)})
	}
	for _, l := range s.lines {
		what := fmt.Sprintf("%s fence %d pod %s of %s", l.Event, l.Fence, short(l.PodID), l.Pod)
		if l.Cause != "" {
			what += fmt.Sprintf(" %.100q", l.Cause)
		}
		if l.Refused {
			what += ", refused"
		}
		list = append(list, moment{l.T, "ledger", what})
	}
	return list
}

func (v *view) callMoments(id int64) (list []moment) {
	for _, c := range v.calls[id] {
		what := fmt.Sprintf("call %d of client %d to %s: %s", c.N, c.Client, c.Pod, c.Verb)
		list = append(list, moment{c.Began, "calls", what + " begins"},
			moment{c.Ended, "calls", strings.TrimSpace(fmt.Sprintf("%s ends %s %s %s", what, c.Outcome, c.Code, c.State))})
	}
	return list
}

// sampleMoments returns when each claim first appeared in the samples and when it disappeared from them.
func (v *view) sampleMoments(id int64) (list []moment) {
	var seen []history.Running
	for i := range v.run.Samples {
		sample := &v.run.Samples[i]
		var now []history.Running
		for _, r := range sample.Running {
			if r.Job == id {
				now = append(now, r)
			}
		}
		for _, r := range now {
			if !slices.Contains(seen, r) {
				list = append(list, moment{sample.T, "samples", fmt.Sprintf("seen running, fence %d pod %s", r.Fence, short(r.PodID))})
			}
		}
		for _, r := range seen {
			if !slices.Contains(now, r) {
				list = append(list, moment{sample.T, "samples", fmt.Sprintf("no longer seen running, fence %d pod %s", r.Fence, short(r.PodID))})
			}
		}
		seen = now
	}
	return list
}

// podMoments returns when the processes and pod IDs that claimed the job started and ended.
func (v *view) podMoments(s *story, from, to time.Time) (list []moment) {
	add := func(at time.Time, file, format string, args ...any) {
		if !at.IsZero() && !at.Before(from) && !at.After(to) {
			list = append(list, moment{at, file, fmt.Sprintf(format, args...)})
		}
	}
	told := map[any]bool{}
	for _, c := range s.claims {
		b := v.podID(c.podID)
		if !told[b] {
			told[b] = true
			add(b.joined, "events", "%s joins", b.name())
			how := "leaves"
			if b.lapsed {
				how = "is declared dead"
			}
			add(b.closed, "events", "%s %s; samples saw its lease end at %s", b.name(), how, clock(b.leaseSeen))
		}
		if l := b.life; l != nil && !told[l] {
			told[l] = true
			add(l.Started, "pods", "%s process %d starts", l.Pod, l.PID)
			if l.Ready != nil {
				add(*l.Ready, "pods", "%s process %d is ready", l.Pod, l.PID)
			}
			if l.TermAt != nil {
				add(*l.TermAt, "pods", "%s process %d is sent SIGTERM, the first of %d", l.Pod, l.PID, l.TermsGot)
			}
			add(l.Ended, "pods", "%s process %d ends: exit %d %s", l.Pod, l.PID, l.Exit, l.Signal)
		}
	}
	return list
}

// faultMoments returns the faults that affected all pods or a pod that claimed the job.
func (v *view) faultMoments(s *story, from, to time.Time) (list []moment) {
	had := map[string]bool{"": true}
	for _, c := range s.claims {
		had[v.podID(c.podID).pod] = true
	}
	for _, f := range v.run.Faults {
		if !had[f.Pod] || f.Began.After(to) || f.Healed.Before(from) {
			continue
		}
		what := strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Fault, f.Verb, f.Pod))
		list = append(list, moment{f.Began, "faults", what + " begins"},
			moment{f.Healed, "faults", strings.TrimSpace(fmt.Sprintf("%s is healed, struck %d %s", what, f.Struck, f.Error))})
	}
	return list
}
