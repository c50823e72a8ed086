package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// boot is one boot id of a pod.
type boot struct {
	id        string
	pod       string
	life      *life     // nil: no process says so
	joined    time.Time // by its event; zero: none tells
	closed    time.Time // by the first event that says so; zero: none does
	reclosed  bool      // another event says so too
	lapsed    bool      // others closed it
	recovered time.Time // when its jobs were first taken back; zero: never
	leaseSeen time.Time // the latest end of its lease that a sample saw
	seen      time.Time // the latest sample in which its row was open
	claims    []*claim
	kinds     map[string]bool // that it claimed
}

// life is one process of a pod.
type life struct {
	*history.Process
	boots []*boot
}

func (v *view) boot(id string) *boot {
	b := v.boots[id]
	if b == nil {
		b = &boot{id: id, kinds: map[string]bool{}}
		v.boots[id] = b
	}
	return b
}

// podEvent takes an event that is of no job.
func (v *view) podEvent(e *job.Event) {
	if e.Boot == nil {
		return
	}
	b := v.boot(*e.Boot)
	if e.Pod != nil {
		b.pod = *e.Pod
	}
	switch e.Event {
	case "pod.joined":
		b.joined = e.At
	case "pod.left", "pod.lapsed":
		if b.reclosed = !b.closed.IsZero(); !b.reclosed || e.At.Before(b.closed) {
			b.closed = e.At
		}
		b.lapsed = b.lapsed || e.Event == "pod.lapsed"
	}
}

// lookAtPods finds the processes of the boots, and how the boots came and went.
func (v *view) lookAtPods() {
	for i := range v.run.Pods {
		l := &life{Process: &v.run.Pods[i]}
		v.lives = append(v.lives, l)
		for _, id := range l.Boots {
			b := v.boot(id)
			b.life, b.pod = l, l.Pod
			l.boots = append(l.boots, b)
		}
	}
	slices.SortFunc(v.lives, func(a, b *life) int { return cmp.Compare(a.Started.UnixNano(), b.Started.UnixNano()) })
	for _, b := range v.boots { // of a process that did not say so
		if b.life == nil && b.pod != "" {
			for _, l := range v.lives {
				if l.Pod == b.pod && !b.joined.Before(l.Started) && !b.joined.After(l.Ended) {
					b.life = l
					l.boots = append(l.boots, b)
				}
			}
		}
	}
	for _, s := range v.run.Samples {
		for id, until := range s.Leases {
			b := v.boot(id)
			b.leaseSeen, b.seen = later(b.leaseSeen, until), later(b.seen, s.T)
		}
	}
}

// able reports whether a process could do its work between two moments: it was ready, not told to end, and left alone.
func (v *view) able(l *life, from, to time.Time) bool {
	return l.Ready != nil && !l.Ready.After(from) && l.Ended.After(to) && (l.TermAt == nil || l.TermAt.After(to)) &&
		v.trouble.calm(l.Pod, from, to)
}

// ableFor reports whether a process could do its work for so long without a break, at some time between two moments.
func (v *view) ableFor(l *life, from, to time.Time, long time.Duration) bool {
	for ; !from.Add(long).After(to); from = from.Add(v.run.Settings.Heartbeat) {
		if v.able(l, from, from.Add(long)) {
			return true
		}
	}
	return false
}

// name is how a person knows a boot.
func (b *boot) name() string {
	if b.pod == "" {
		return "boot " + short(b.id)
	}
	return b.pod + " (boot " + short(b.id) + ")"
}

// short is the beginning of a boot id, enough to tell it from others.
func short(id string) string { return id[:min(8, len(id))] }

// quietEnd is when the quiet tail ended and the pods were told to go.
func (v *view) quietEnd() time.Time {
	end := v.run.Settings.Ended
	for _, l := range v.lives {
		if l.TermAt != nil && l.TermAt.After(v.run.Settings.QuietFrom) && l.TermAt.Before(end) {
			end = *l.TermAt
		}
	}
	return end
}

// later is the later of two moments, earlier the earlier.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
