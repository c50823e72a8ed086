package checker

import (
	"slices"
	"time"
)

// span is a period of time that includes both ends.
type span struct{ from, to time.Time }

func (s span) meets(from, to time.Time) bool { return !s.from.After(to) && !s.to.Before(from) }

// harmless lists faults that slow nothing down.
var harmless = []string{
	"F1", "F5", "F6", "F10", // the process ends, which its record shows
	"F9", "F11", "F12", "F13", "F15", "F16", // the fault is a job
	"F25", "F49", // clients disconnect or repeat a submission
	"F33", "F34", "F35", // a stuck listener, forged notifications, and a long-lived snapshot
}

// clockJump is the fault that, from the leases' point of view, changes the database's clock.
const clockJump = "F36"

// trouble contains the periods in which the database or a pod was disturbed. Every timing check consults it.
type trouble struct {
	all        []span            // affects every pod
	of         map[string][]span // by pod
	far        map[string][]span // by remote worker, including the troubles of the pods that serve it
	shortOfCPU map[string][]span // by pod, the periods in which it lacked CPU time
	skewed     []span            // periods in which a fault had changed the leases in the database
	settle     time.Duration     // recovery time after a fault was undone
}

// troubleOf derives the troubles of a run from its faults. A fault that names no pod affects all pods. A fault with a negative number was
// injected into an idle fleet and excuses no pod, because the pods had no other work to do. The records show which failpoints were
// triggered in a process but not when, so a process with a triggered failpoint counts as disturbed for its whole life.
func troubleOf(v *view) trouble {
	s := v.run.Settings
	t := trouble{all: stallsOf(v.run), of: starvedPods(v.run), shortOfCPU: starvedPods(v.run), settle: s.Lease + s.Poll + v.slack}
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
		if f.Fault == clockJump {
			t.skewed = append(t.skewed, one)
		}
	}
	for _, l := range v.lives {
		if len(l.Fired) > 0 {
			t.of[l.Pod] = append(t.of[l.Pod], span{l.Started, l.Ended})
		}
	}
	t.addPodTroubles(v)
	return t
}

// about returns the periods in which a pod or a remote worker was disturbed.
func (t trouble) about(pod string) []span {
	if spans, ok := t.far[pod]; ok {
		return spans
	}
	return t.of[pod]
}

// calm reports whether nothing disturbed the database or the pod during the given period, or so shortly before it that the effects may have
// lasted into the period. An empty pod name stands for the database alone.
func (t trouble) calm(pod string, from, to time.Time) bool {
	return t.still(pod, from.Add(-t.settle), to)
}

// still reports whether nothing disturbed the database or the pod during the given period.
func (t trouble) still(pod string, from, to time.Time) bool {
	meets := func(s span) bool { return s.meets(from, to) }
	return !slices.ContainsFunc(t.all, meets) && (pod == "" || !slices.ContainsFunc(t.about(pod), meets))
}

// stillForAll reports whether nothing disturbed the database or any pod during the given period. It ignores remote workers, because jobs
// are never submitted through them.
func (t trouble) stillForAll(from, to time.Time) bool {
	for pod := range t.of {
		if !t.still(pod, from, to) {
			return false
		}
	}
	return t.still("", from, to)
}

// quietAfter returns the earliest end of a period of length d that begins at from or later and during which nothing disturbed the pod.
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

// starved reports whether a pod lacked CPU time at the given time, or so shortly before that it may still have been catching up.
func (t trouble) starved(pod string, at time.Time) bool {
	return slices.ContainsFunc(t.shortOfCPU[pod], func(s span) bool { return s.meets(at.Add(-t.settle), at) })
}

// skewedAt reports whether a fault had changed leases in the database around the given time.
func (v *view) skewedAt(at time.Time) bool {
	reach := 2 * v.run.Settings.Lease
	return slices.ContainsFunc(v.trouble.skewed, func(s span) bool { return s.meets(at.Add(-reach), at.Add(reach)) })
}
