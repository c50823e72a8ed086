package checker

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// past is a fabricated run. It is built step by step and contains the records that every component would have written. Each step advances
// the time by one millisecond; [past.pass] advances it by more.
type past struct {
	t     *testing.T
	run   *history.Run
	now   time.Time
	xid   int
	tales []*tale
	pods  map[string]*place
}

// place is a pod's place in the fleet and its current process.
type place struct {
	name   string
	now    *history.Process
	podID  string
	beats  map[string][]span // by pod ID, the periods in which the process sent heartbeats
	podIDs int
}

// names lists the processes in a fabricated run's fleet. The first two pods serve worker1, a remote worker.
var names = []string{"pod1", "pod2", "pod3", "worker1"}

// begin starts a run with three pods and a remote worker.
func begin(t *testing.T) *past {
	t.Helper()
	p := &past{t: t, run: &history.Run{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), xid: 1000, pods: map[string]*place{}}
	p.run.Settings = history.Settings{Seed: 1, Lease: 3 * time.Second, Heartbeat: time.Second, Poll: time.Second, Grace: 3 * time.Second,
		Slots: 8, MaxCrashes: 3, Quiescent: true}
	for _, name := range names {
		p.pods[name] = &place{name: name, beats: map[string][]span{}}
		p.start(name)
	}
	p.pass(time.Second)
	p.run.Settings.Began = p.now
	p.pass(10 * time.Second) // long enough for no process to count as new
	return p
}

func (p *past) pass(d time.Duration) { p.now = p.now.Add(d) }

func (p *past) step() time.Time {
	p.pass(time.Millisecond)
	return p.now
}

// start starts a process in a pod's place, with a new pod ID.
func (p *past) start(name string) {
	one := p.pods[name]
	p.run.Pods = append(p.run.Pods, history.Process{Pod: name, PID: 100 + len(p.run.Pods), Started: p.step(), Log: name + ".log"})
	one.now = &p.run.Pods[len(p.run.Pods)-1]
	if name == "worker1" {
		one.now.Via, one.now.Slots = []string{"pod1", "pod2"}, 4
	}
	for n, other := range p.pods { // append may have moved the elements
		for i := range p.run.Pods {
			if other.now != nil && p.run.Pods[i].Pod == n {
				other.now = &p.run.Pods[i]
			}
		}
	}
	p.join(name)
	ready := p.step()
	one.now.Ready = &ready
}

// join assigns a new pod ID to a process.
func (p *past) join(name string) {
	one := p.pods[name]
	one.podIDs++
	one.podID = fmt.Sprintf("%s-boot%d", name, one.podIDs)
	one.now.PodIDs = append(one.now.PodIDs, one.podID)
	p.podEvent("pod.joined", name, one.podID)
	one.beats[one.podID] = []span{{from: p.now}}
}

func (p *past) podEvent(event, pod, podID string) {
	p.xid++
	p.run.Events = append(p.run.Events, job.Event{Cursor: fmt.Sprintf("%d.0.1", p.xid), At: p.step(), Actor: "system", PodID: &podID, Pod: &pod,
		Event: event, Level: "info", Message: &pod})
}

// quiet pauses the heartbeats of a pod's current pod ID, and beat resumes them.
func (p *past) quiet(name string) {
	if beats := p.pods[name].beats[p.pods[name].podID]; len(beats) > 0 { // empty once the pod ID has been declared dead
		last(beats).to = p.now
	}
}

func (p *past) beat(name string) {
	one := p.pods[name]
	one.beats[one.podID] = append(one.beats[one.podID], span{from: p.now})
}

// kill kills a pod's process.
func (p *past) kill(name string) {
	p.quiet(name)
	one := p.pods[name].now
	one.Ended, one.Exit, one.Signal, one.StoppedBy = p.step(), -1, "killed", "signal"
}

// term shuts a pod's process down gracefully.
func (p *past) term(name string, takes time.Duration) {
	at := p.step()
	one := p.pods[name]
	one.now.TermAt, one.now.TermsGot, one.now.StoppedBy = &at, 1, "signal"
	p.pass(takes)
	p.podEvent("pod.left", name, one.podID)
	p.quiet(name)
	one.now.Ended = p.step()
}

// lapse lets a quiet pod's lease expire. The other pods then declare the pod dead.
func (p *past) lapse(name string) {
	one := p.pods[name]
	beats := one.beats[one.podID]
	p.now = later(p.now, beats[len(beats)-1].to.Add(p.run.Settings.Lease+50*time.Millisecond))
	p.podEvent("pod.lapsed", name, one.podID)
	p.quietly(name)
}

// quietly removes from the samples a pod ID that was declared dead.
func (p *past) quietly(name string) {
	one := p.pods[name]
	one.beats["lapsed "+one.podID] = append(one.beats[one.podID], span{p.now, p.now})
	delete(one.beats, one.podID)
}

// fault injects a fault and records it.
func (p *past) fault(name, verb, pod string, lasts time.Duration, do func()) {
	f := history.Fault{Act: history.Act{No: len(p.run.Faults) + 1, Fault: name, Verb: verb, Pod: pod, For: lasts}, Began: p.step(), Struck: 1}
	at := len(p.run.Faults)
	p.run.Faults = append(p.run.Faults, f)
	if do != nil {
		do()
	}
	p.now = later(p.now, f.Began.Add(lasts))
	p.run.Faults[at].Healed = p.now
}

// operate records a change to a lane or, if lane is empty, to the queue state.
func (p *past) operate(lane string, slots int, open bool) {
	c := history.Call{N: len(p.run.Calls) + 1, Verb: "lane", Lane: lane, SlotsPerPod: &slots, Enabled: &open, Began: p.step(), Ended: p.step(), Outcome: history.OK}
	if shut := !open; lane == "" {
		c.Verb, c.SlotsPerPod, c.Enabled, c.Paused = "queue_state", nil, nil, &shut
	}
	p.run.Calls = append(p.run.Calls, c)
}

// limitKey records a change to the limit of a key, or of each key, in the default lane.
func (p *past) limitKey(key string, slots int) {
	p.run.Calls = append(p.run.Calls, history.Call{N: len(p.run.Calls) + 1, Verb: "key_limit", Lane: "default", JobKey: key, Slots: &slots, Began: p.step(),
		Ended: p.step(), Outcome: history.OK})
}

// done finishes the run: it adds the quiet tail, the pods' shutdown, the samples and the exports.
func (p *past) done() *history.Run {
	p.run.Settings.QuietFrom = p.step()
	p.pass(12 * time.Second)
	for _, name := range names {
		if p.pods[name].now.Ended.IsZero() {
			p.term(name, 200*time.Millisecond)
		}
	}
	p.run.Settings.Ended = p.step()
	for _, t := range p.tales {
		p.run.Jobs = append(p.run.Jobs, t.row)
	}
	p.sample()
	if p.run.Rows == nil {
		p.run.Rows = []history.Row{}
	}
	return p.run
}

// sample records a sample every 100 ms and the pods' resource usage every second.
func (p *past) sample() {
	n := 0
	for at := p.run.Settings.Began; at.Before(p.run.Settings.Ended); at = at.Add(100 * time.Millisecond) {
		one := history.Sample{T: at, Leases: map[string]time.Time{}}
		for _, t := range p.tales {
			for _, s := range t.spans {
				if !s.from.After(at) && (s.to.IsZero() || s.to.After(at)) {
					one.Running = append(one.Running, history.Running{Job: t.row.ID, Kind: t.row.Kind, Subject: t.row.Subject, Lane: t.row.Lane,
						PodID: s.podID, Fence: s.fence})
				}
			}
		}
		for _, pod := range p.pods {
			for podID, beats := range pod.beats {
				p.leaseAt(&one, podID, beats)
			}
		}
		if n++; n%10 == 1 {
			for _, l := range p.run.Pods {
				if !l.Started.After(at) && l.Ended.After(at) {
					one.Pods = append(one.Pods, history.PodNumbers{Pod: l.Pod, Goroutines: 40, Files: 25, RSS: 40 << 20, Connections: 9})
				}
			}
		}
		p.run.Samples = append(p.run.Samples, one)
	}
}

// leaseAt records the lease as set by a pod ID's latest heartbeat. A pod ID sends one heartbeat per second.
func (p *past) leaseAt(one *history.Sample, podID string, beats []span) {
	var last, gone time.Time
	if id, lapsed := cutPrefix(podID, "lapsed "); lapsed {
		podID, gone = id, beats[len(beats)-1].to
		beats = beats[:len(beats)-1]
	}
	for _, b := range beats {
		to := one.T
		if !b.to.IsZero() && b.to.Before(to) {
			to = b.to
		}
		if !b.from.After(to) {
			last = b.from.Add(to.Sub(b.from).Truncate(time.Second))
		}
	}
	if !last.IsZero() && (gone.IsZero() || one.T.Before(gone)) {
		one.Leases[podID] = last.Add(p.run.Settings.Lease)
	}
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) >= len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):], true
	}
	return s, false
}

// of returns the finding for an invariant.
func findingOf(t *testing.T, list []Finding, invariant string) Finding {
	t.Helper()
	i := slices.IndexFunc(list, func(f Finding) bool { return f.Invariant == invariant })
	if i < 0 {
		t.Fatalf("there is no finding %s", invariant)
	}
	return list[i]
}
