package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// boot describes one boot ID of a pod.
type boot struct {
	id        string
	pod       string
	life      *life     // nil if no process reported this boot ID
	joined    time.Time // time of its event, or zero if there is none
	closed    time.Time // time of the first event that closed it, or zero if there is none
	reclosed  bool      // another event closed it again
	lapsed    bool      // whether other pods closed it
	recovered time.Time // time when its jobs were first taken back, or zero if they never were
	leaseSeen time.Time // the latest lease expiry that a sample shows
	seen      time.Time // time of the latest sample that shows its row as open
	claims    []*claim
	kinds     map[string]bool // kinds that it claimed
}

// life describes one process of a pod.
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

// podEvent records an event that belongs to no job.
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

// assignBoots assigns boots to processes and determines when each boot joined and left.
func (v *view) assignBoots() {
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
	for _, b := range v.boots { // boots that no process reported
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

// able reports whether a process could work throughout the given period, which means that it was ready, not shutting down and undisturbed.
func (v *view) able(l *life, from, to time.Time) bool {
	return l.Ready != nil && !l.Ready.After(from) && l.Ended.After(to) && (l.TermAt == nil || l.TermAt.After(to)) &&
		v.trouble.calm(l.Pod, from, to)
}

// ableFor reports whether a process could work for the given duration without interruption at some point in the period.
func (v *view) ableFor(l *life, from, to time.Time, long time.Duration) bool {
	for ; !from.Add(long).After(to); from = from.Add(v.run.Settings.Heartbeat) {
		if v.able(l, from, from.Add(long)) {
			return true
		}
	}
	return false
}

// name returns a readable name for a boot.
func (b *boot) name() string {
	if b.pod == "" {
		return "boot " + short(b.id)
	}
	return b.pod + " (boot " + short(b.id) + ")"
}

// short returns the beginning of a boot ID, which is enough to recognize it.
func short(id string) string { return id[:min(8, len(id))] }

// quietEnd returns the time at which the quiet tail ended and the pods were told to shut down.
func (v *view) quietEnd() time.Time {
	end := v.run.Settings.Ended
	for _, l := range v.lives {
		if l.TermAt != nil && l.TermAt.After(v.run.Settings.QuietFrom) && l.TermAt.Before(end) {
			end = *l.TermAt
		}
	}
	return end
}

// later returns the later of two times, and earlier returns the earlier one.
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
