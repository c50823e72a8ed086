package checker

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// perKey lists the kinds with a limit of jobs per key, as the program declares them with ConcurrencyPerKey.
var perKey = map[string]int{"demo.sleep": 2}

// keyLimits contains the limits per key of each lane, by lane and key, taken from the operator's calls. The key * stands for each key.
type keyLimits map[[2]string][]keyLimit

// keyLimit is a limit that may be in force from the time at which its change is sent until the response to the next successful change.
type keyLimit struct {
	span
	slots int // 0 if there is none
}

func keyLimitsOf(run *history.Run) keyLimits {
	limits := keyLimits{}
	var changes []*history.Call
	for i := range run.Calls {
		if c := &run.Calls[i]; c.Verb == "key_limit" {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b *history.Call) int { return a.Began.Compare(b.Began) })
	for _, c := range changes {
		at := [2]string{c.Lane, c.JobKey}
		if limits[at] == nil {
			limits[at] = []keyLimit{{span{time.Time{}, run.Settings.Ended}, 0}}
		}
		if c.Outcome == history.OK {
			for i := range limits[at] {
				limits[at][i].to = earlier(limits[at][i].to, c.Ended)
			}
		}
		limits[at] = append(limits[at], keyLimit{span{c.Began, run.Settings.Ended}, *c.Slots})
	}
	return limits
}

// between returns the lowest and the highest limit that a lane may have had for a key in the given period.
func (l keyLimits) between(lane, key string, from, to time.Time) (least, most int) {
	least, most = math.MaxInt, 0
	add := func(slots int) { least, most = min(least, slots), max(most, slots) }
	each := func(key string, none func()) {
		rows := l[[2]string{lane, key}]
		if rows == nil {
			none()
		}
		for _, r := range rows {
			if r.from.After(to) || r.to.Before(from) {
				continue
			}
			if r.slots == 0 {
				none()
			} else {
				add(r.slots)
			}
		}
	}
	each(key, func() { each("*", func() { add(math.MaxInt) }) })
	return least, most
}

func (v *view) indexKeys() {
	v.keyed, v.keyLimits = map[string][]*story{}, keyLimitsOf(v.run)
	for _, k := range v.run.Keys {
		s := v.story(k.Job)
		s.key = k.Key
		v.keyed[k.Key] = append(v.keyed[k.Key], s)
	}
}

// keysHold (I8b) checks that no more jobs of a key run at a time than the lane and the kind allow. A claim lasts from its handler's first line to the event
// that ends it, as in [subjectsExclude]. A job has its place from the time at which it waited for nothing else, which is not recorded. A lowered limit
// therefore applies once all running jobs have become due, or their parents have, after the change.
func keysHold(v *view, f *Finding) {
	type run struct {
		c               *claim
		from, to, since time.Time
	}
	type group struct{ what, name, key string }
	groups := map[group][]run{}
	for key, list := range v.keyed {
		for _, s := range list {
			if s.job == nil || s.tampered {
				continue
			}
			for _, c := range s.claims {
				start := c.start()
				if start == nil {
					continue
				}
				one := run{c, start.T, v.run.Settings.Ended, v.placedSince(c)}
				if c.end != nil {
					one.to = c.end.At
				}
				if !one.from.Before(one.to) {
					continue // the claim was lost before its handler started
				}
				lane, kind := group{"lane", start.Lane, key}, group{"kind", s.job.Kind, key}
				groups[lane] = append(groups[lane], one)
				if perKey[s.job.Kind] > 0 {
					groups[kind] = append(groups[kind], one)
				}
			}
		}
	}
	for g, list := range groups {
		slices.SortFunc(list, func(a, b run) int { return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.c.of.id, b.c.of.id)) })
		for i, one := range list {
			running, since := 1, one.since
			for _, other := range list[:i] {
				if one.from.Add(sameClock).Before(other.to) {
					running, since = running+1, earlier(since, other.since)
				}
			}
			most := perKey[g.name]
			if g.what == "lane" {
				if _, most = v.keyLimits.between(g.name, g.key, since, one.from); most == math.MaxInt {
					continue
				}
			}
			f.judge(running <= most, one.c.of.id, "job %d of key %q started at %s as number %d of that key in %s %s, which allows %d", one.c.of.id, g.key,
				clock(one.from), running, g.what, g.name, most)
		}
	}
}

// placedSince returns a time before which the job of a claim had no place: when it last became due or, for a step, when that was so for its parent.
func (v *view) placedSince(c *claim) time.Time {
	since := c.event.At
	for _, e := range slices.Backward(c.of.events[:slices.Index(c.of.events, c.event)]) {
		since = e.At
		if e.Event == "job.promoted" || e.Event == "job.operator_retry" {
			return since
		}
	}
	if c.of.job.ParentID != nil {
		if parent := v.story(*c.of.job.ParentID); parent.key == c.of.key && len(parent.claims) > 0 {
			return v.placedSince(parent.claims[len(parent.claims)-1])
		}
	}
	return since
}

// placeFor reports whether there was definitely a place for a job throughout the given period, or for another job of its key that a process with free slots
// would have claimed: the remaining open jobs of the key could not have filled the limits. A job that waited in the same lane, while such a process handled
// its kind, and was neither claimed nor changed meanwhile, is not one of them.
func (v *view) placeFor(s *story, from, to time.Time) bool {
	if s.key == "" {
		return true
	}
	least, _ := v.keyLimits.between(s.job.Lane, s.key, from, to)
	most, others, ofKind := perKey[s.job.Kind], 0, 0
	for _, other := range v.keyed[s.key] {
		if other == s || other.job == nil || len(other.events) == 0 {
			continue
		}
		over := v.run.Settings.Ended
		if e := other.events[len(other.events)-1]; e.To.Terminal() {
			over = e.At
		}
		if other.events[0].At.After(to) || over.Before(from) {
			continue
		}
		if other.job.Lane == s.job.Lane {
			free := other.job.Crashes <= 1 && (other.job.UniqueKey == nil || v.trouble.stillForAll(from, to)) // else it may be isolated, or its unique key locked
			if free && other.waitsThroughout(from, to) && v.roomForKind(other.job.Kind, from, to) {
				continue
			}
			others++
		}
		if other.job.Kind == s.job.Kind {
			ofKind++
		}
		if others >= min(least, 20) || most > 0 && ofKind >= most {
			return false
		}
	}
	return true
}

// roomForKind reports whether a process that handles a kind worked normally and had free slots in every sample of the given period.
func (v *view) roomForKind(kind string, from, to time.Time) bool {
	return slices.ContainsFunc(v.lives, func(l *life) bool { return l.knows(kind) && v.able(l, from, to) && v.roomIn(l, from, to) })
}

// waitsThroughout reports whether a job was not running in the given period and had no event in it, except for its submission.
func (s *story) waitsThroughout(from, to time.Time) bool {
	return !slices.ContainsFunc(s.events, func(e *job.Event) bool { return e.Event != "job.enqueued" && !e.At.Before(from) && !e.At.After(to) }) &&
		!slices.ContainsFunc(s.claims, func(c *claim) bool { return !c.event.At.After(to) && (c.end == nil || !c.end.At.Before(from)) })
}
