package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// podID describes one ID of a pod.
type podID struct {
	id        string
	pod       string
	life      *life     // nil if no process reported this pod ID
	joined    time.Time // when it joined, or zero if no event shows that
	closed    time.Time // when its row was first closed, or zero if no event shows that
	reclosed  bool      // its row was closed again by another event
	lapsed    bool      // other pods closed its row
	recovered time.Time // when a job was first taken back from it, or zero if none was
	leaseSeen time.Time // latest lease expiry in any sample
	seen      time.Time // time of the latest sample in which its row is open
	claims    []*claim
	kinds     map[string]bool // kinds of the jobs that it claimed
}

// life describes one process of a pod.
type life struct {
	*history.Process
	podIDs []*podID
}

func (v *view) podID(id string) *podID {
	b := v.podIDs[id]
	if b == nil {
		b = &podID{id: id, kinds: map[string]bool{}}
		v.podIDs[id] = b
	}
	return b
}

// podEvent records an event that is not about a job.
func (v *view) podEvent(e *job.Event) {
	if e.PodID == nil {
		return
	}
	b := v.podID(*e.PodID)
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

// assignBoots assigns pod IDs to processes and determines when each pod ID joined and left.
func (v *view) assignBoots() {
	for i := range v.run.Pods {
		l := &life{Process: &v.run.Pods[i]}
		v.lives = append(v.lives, l)
		for _, id := range l.PodIDs {
			b := v.podID(id)
			b.life, b.pod = l, l.Pod
			l.podIDs = append(l.podIDs, b)
		}
	}
	slices.SortFunc(v.lives, func(a, b *life) int { return cmp.Compare(a.Started.UnixNano(), b.Started.UnixNano()) })
	for _, b := range v.podIDs { // pod IDs that no process has reported
		if b.life == nil && b.pod != "" {
			for _, l := range v.lives {
				if l.Pod == b.pod && !b.joined.Before(l.Started) && !b.joined.After(l.Ended) {
					b.life = l
					l.podIDs = append(l.podIDs, b)
				}
			}
		}
	}
	for _, s := range v.run.Samples {
		for id, until := range s.Leases {
			b := v.podID(id)
			b.leaseSeen, b.seen = later(b.leaseSeen, until), later(b.seen, s.T)
		}
	}
}

// able reports whether a process could work throughout the given period: it must have been ready, not shutting down, and undisturbed.
func (v *view) able(l *life, from, to time.Time) bool {
	return l.Ready != nil && !l.Ready.After(from) && l.Ended.After(to) && (l.TermAt == nil || l.TermAt.After(to)) &&
		v.trouble.calm(l.Pod, from, to)
}

// ableFor reports whether, within the given period, a process could work without interruption for the given duration.
func (v *view) ableFor(l *life, from, to time.Time, long time.Duration) bool {
	for ; !from.Add(long).After(to); from = from.Add(v.run.Settings.Heartbeat) {
		if v.able(l, from, from.Add(long)) {
			return true
		}
	}
	return false
}

// name returns a human-readable name for a pod ID.
func (b *podID) name() string {
	if b.pod == "" {
		return "pod id " + short(b.id)
	}
	return b.pod + " (id " + short(b.id) + ")"
}

// short returns the first characters of a pod ID, which are enough to recognize it.
func short(id string) string { return id[:min(8, len(id))] }

// quietEnd returns when the quiet tail ended and the pods were told to shut down.
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
