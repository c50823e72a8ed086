package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// orderedKeep (I8c) checks that no other job of its kind and subject is claimed between two attempts of an ordered job. The job gives its subject up only when
// it ends or begins to wait for its children.
func orderedKeep(v *view, f *Finding) {
	type line struct{ kind, subject string }
	claims := map[line][]*claim{}
	for _, s := range v.ordered {
		if s.job != nil && !s.tampered && s.job.Subject != "" {
			k := line{s.job.Kind, s.job.Subject}
			claims[k] = append(claims[k], s.claims...)
		}
	}
	for _, list := range claims {
		slices.SortFunc(list, func(a, b *claim) int { return cmp.Or(a.event.At.Compare(b.event.At), cmp.Compare(a.fence, b.fence)) })
		for i, c := range list {
			s := c.of
			if !s.keeps || c.end == nil || c.end.To != job.Pending {
				continue
			}
			until := v.run.Settings.Ended
			for _, e := range s.events[slices.Index(s.events, c.end)+1:] {
				if e.To == job.Running || e.To.Terminal() {
					until = e.At
					break
				}
			}
			for _, other := range list[i+1:] {
				if other.of != s && other.event.At.After(c.end.At.Add(sameClock)) && other.event.At.Add(sameClock).Before(until) {
					f.accuse(other.of.id, "job %d of %s %q was claimed at %s, while the ordered job %d waited for its next attempt from %s to %s", other.of.id,
						s.job.Kind, s.job.Subject, clock(other.event.At), s.id, clock(c.end.At), clock(until))
				}
			}
			f.Checked++
		}
	}
}

// subjectsExclude (I8) checks that, among jobs of the same kind and subject, no sample shows two running and no two claims overlap. A claim
// definitely lasts from its handler's first line to the event that ends it. Without a first line, the claim counts from shortly after its
// event.
func subjectsExclude(v *view, f *Finding) {
	type key struct{ kind, subject string }
	for i := range v.run.Samples {
		seen := map[key]int64{}
		for _, r := range v.run.Samples[i].Running {
			if r.Subject == "" || v.story(r.Job).tampered {
				continue
			}
			k := key{r.Kind, r.Subject}
			other, twice := seen[k]
			f.judge(!twice, r.Job, "jobs %d and %d of %s %q were both running at %s", other, r.Job, r.Kind, r.Subject, clock(v.run.Samples[i].T))
			seen[k] = r.Job
		}
	}
	type certain struct {
		c        *claim
		from, to time.Time
	}
	spans := map[key][]certain{}
	for _, s := range v.ordered {
		if s.job == nil || s.tampered || s.job.Subject == "" {
			continue
		}
		for _, c := range s.claims {
			one := certain{c: c, from: c.event.At, to: v.run.Settings.Ended}
			if c.end != nil {
				one.to = c.end.At
			}
			switch start := c.start(); {
			case start != nil:
				one.from = start.T
			case v.trouble.calm(v.podID(c.podID).pod, c.event.At, c.event.At.Add(v.slack)):
				one.from = c.event.At.Add(v.slack)
			default:
				continue
			}
			k := key{s.job.Kind, s.job.Subject}
			f.Checked++
			if one.from.Before(one.to) {
				spans[k] = append(spans[k], one)
			}
		}
	}
	for k, list := range spans {
		slices.SortFunc(list, func(a, b certain) int { return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.c.of.id, b.c.of.id)) })
		longest := 0
		for i := 1; i < len(list); i++ {
			if a, b := list[longest], list[i]; b.from.Add(sameClock).Before(a.to) {
				f.accuse(b.c.of.id, "jobs %d and %d of %s %q ran at the same time, from %s to %s", a.c.of.id, b.c.of.id, k.kind, k.subject,
					clock(b.from), clock(earlier(a.to, b.to)))
			}
			if list[i].to.After(list[longest].to) {
				longest = i
			}
		}
	}
}
