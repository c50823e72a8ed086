package checker

import (
	"slices"
	"time"
)

// span is a stretch of time, both ends included.
type span struct{ from, to time.Time }

func (s span) meets(from, to time.Time) bool { return !s.from.After(to) && !s.to.Before(from) }

// harmless are the faults that slow nobody down: the end of a process, which is seen in its record, jobs that are faults
// themselves, clients that go away, messages that mean nothing, and a snapshot that is kept.
var harmless = []string{"F1", "F5", "F6", "F9", "F10", "F11", "F12", "F13", "F15", "F16", "F25", "F33", "F34", "F35", "F49"}

// trouble is when the database, or a pod, was not left alone. Everything that is judged by the clock asks it.
type trouble struct {
	all    []span            // of everybody
	of     map[string][]span // by pod
	far    map[string][]span // by remote worker, with what its pods suffer
	hungry map[string][]span // by pod, when it got no processor
	skewed []span            // the database's idea of leases was changed
	settle time.Duration     // after a fault was healed, until whoever it hit is himself again
}

// troubleOf reads the faults. A fault that names no pod is everybody's. One that struck a fleet at rest, with a number below 0, excuses no pod:
// its pods had nothing else to do. What a failpoint did in a process is known by its name only, so such a process is troubled for as long as it
// lived.
func troubleOf(v *view) trouble {
	s := v.run.Settings
	t := trouble{all: stallsOf(v.run), of: starvedPods(v.run), hungry: starvedPods(v.run), settle: s.Lease + s.Poll + v.slack}
	for _, f := range v.run.Faults {
		one := span{f.Began, f.Began}
		if f.Healed.After(f.Began) {
			one.to = f.Healed
		}
		switch {
		case slices.Contains(harmless, f.Fault), f.Verb == "delete_row", f.No < 0:
		case f.Pod != "":
			t.of[f.Pod] = append(t.of[f.Pod], one)
		default:
			t.all = append(t.all, one)
		}
		if f.Fault == "F36" {
			t.skewed = append(t.skewed, one)
		}
	}
	for _, l := range v.lives {
		if len(l.Fired) > 0 {
			t.of[l.Pod] = append(t.of[l.Pod], span{l.Started, l.Ended})
		}
	}
	t.lookAfterWorkers(v)
	return t
}

// about are the troubles of a pod, or of a remote worker.
func (t trouble) about(pod string) []span {
	if spans, ok := t.far[pod]; ok {
		return spans
	}
	return t.of[pod]
}

// calm reports whether nothing disturbed the database or, unless it is empty, the pod between two moments, nor so shortly
// before that it may still have been felt.
func (t trouble) calm(pod string, from, to time.Time) bool {
	return t.still(pod, from.Add(-t.settle), to)
}

// still reports whether nothing disturbed the database or the pod between two moments.
func (t trouble) still(pod string, from, to time.Time) bool {
	meets := func(s span) bool { return s.meets(from, to) }
	return !slices.ContainsFunc(t.all, meets) && (pod == "" || !slices.ContainsFunc(t.about(pod), meets))
}

// stillForAll reports whether nothing disturbed the database or any pod between two moments. Remote workers count for nothing: no job is
// submitted through one.
func (t trouble) stillForAll(from, to time.Time) bool {
	for pod := range t.of {
		if !t.still(pod, from, to) {
			return false
		}
	}
	return t.still("", from, to)
}

// quietAfter is the first moment after from at which nothing has disturbed a pod for d.
func (t trouble) quietAfter(pod string, from time.Time, d time.Duration) time.Time {
	spans := slices.Concat(t.all, t.about(pod))
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	for _, s := range spans {
		if s.meets(from, from.Add(d)) && s.to.After(from) {
			from = s.to
		}
	}
	return from.Add(d)
}

// starved reports whether a pod got no processor at a moment, or so shortly before that what it left undone may still be there.
func (t trouble) starved(pod string, at time.Time) bool {
	return slices.ContainsFunc(t.hungry[pod], func(s span) bool { return s.meets(at.Add(-t.settle), at) })
}

// skewedAt reports whether the leases in the database were tampered with around a moment.
func (v *view) skewedAt(at time.Time) bool {
	reach := 2 * v.run.Settings.Lease
	return slices.ContainsFunc(v.trouble.skewed, func(s span) bool { return s.meets(at.Add(-reach), at.Add(reach)) })
}
