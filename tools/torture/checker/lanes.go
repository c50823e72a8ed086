package checker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// unlimited is the slot count of a lane that may use all of a pod's slots.
const unlimited = -1

// rule is a setting for a lane or for the whole queue. It is definitely in force from the response to the change that made it until the
// next change is sent.
type rule struct {
	span
	slots int // slots per pod
	all   int // slots across all pods
	open  bool
}

// lanes contains the settings for the lanes and the whole queue, taken from the operator's calls. While a change is in progress, the
// setting is unknown. Except for the default lane, a lane's setting is also unknown before its first change.
type lanes struct {
	byName map[string][]rule
	queue  []rule
}

func lanesOf(run *history.Run) lanes {
	began, ended := time.Time{}, run.Settings.Ended
	always := span{began, ended}
	l := lanes{byName: map[string][]rule{job.DefaultLane: {{always, unlimited, unlimited, true}}}, queue: []rule{{always, unlimited, unlimited, true}}}
	var changes []*history.Call
	for i := range run.Calls {
		if c := &run.Calls[i]; c.Verb == "lane" || c.Verb == "queue_state" {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b *history.Call) int { return cmp.Compare(a.Began.UnixNano(), b.Began.UnixNano()) })
	for _, c := range changes {
		next := rule{span: span{c.Ended, ended}, slots: unlimited, all: unlimited, open: true}
		if c.Verb == "queue_state" {
			next.open = c.Paused != nil && !*c.Paused
			l.queue = changed(l.queue, c, next)
			continue
		}
		if c.SlotsPerPod != nil {
			next.slots = *c.SlotsPerPod
		}
		if c.Slots != nil {
			next.all = *c.Slots
		}
		next.open = c.Enabled == nil || *c.Enabled
		l.byName[c.Lane] = changed(l.byName[c.Lane], c, next)
	}
	return l
}

// changed ends the current rule when a change is sent. The next rule is known only once the change has succeeded.
func changed(rules []rule, c *history.Call, next rule) []rule {
	if n := len(rules); n > 0 {
		rules[n-1].to = earlier(rules[n-1].to, c.Began)
	}
	if c.Outcome == history.OK {
		rules = append(rules, next)
	}
	return rules
}

// known returns the rule that was definitely in force for a lane throughout the given period.
func (l lanes) known(lane string, from, to time.Time) (rule, bool) {
	return during(l.byName[settingsOf(lane)], from, to)
}

// settingsOf returns the name of the lane or template that has the settings of a lane. Only lanes made from a template have a slash in their names.
func settingsOf(lane string) string {
	if prefix, _, made := strings.Cut(lane, "/"); made {
		return prefix + "/*"
	}
	return lane
}

func during(rules []rule, from, to time.Time) (rule, bool) {
	for _, r := range rules {
		if !r.from.After(from) && !r.to.Before(to) {
			return r, true
		}
	}
	return rule{}, false
}

// free reports whether a lane and the queue were definitely open and unlimited throughout the given period.
func (l lanes) free(lane string, from, to time.Time) bool {
	r, ok := l.known(lane, from, to)
	queue, okQueue := during(l.queue, from, to)
	return ok && okQueue && r.open && queue.open && r.slots == unlimited && r.all == unlimited
}

// shut reports whether no job in a lane could run at the given time.
func (l lanes) shut(lane string, at time.Time) bool {
	r, ok := l.known(lane, at, at)
	queue, okQueue := during(l.queue, at, at)
	return ok && (!r.open || r.slots == 0 || r.all == 0) || okQueue && !queue.open
}
