package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// PlanOptions limits what a plan may contain.
type PlanOptions struct {
	For     time.Duration // length of the run, by the end of which every fault has been undone; the default is 1 minute
	Pods    int           // number of pods, named pod1 to podN; the default is 3
	Workers int           // number of remote workers, named worker1 to workerN; the default is 0
	Only    []string      // names of faults, such as F24; if empty, all faults are used
}

// These constants set the pace of a plan. Fleet-wide outages are at least airBetween apart. A test checks that no outage, including
// recovery, takes longer than longestOutage.
const (
	firstAct      = 3 * time.Second
	actsApart     = 5 * time.Second // on average
	comeBack      = 4 * time.Second // how long a pod that was hit needs to recover
	airBetween    = 5 * time.Second
	longestOutage = 15 * time.Second
)

// aim is the target of an injector.
type aim int

const (
	atNone   aim = iota // the fleet keeps working
	atPod               // one pod is out for a while
	atAll               // the whole fleet is out
	atWorker            // one remote worker is out
)

// injector is one way to inject a fault.
type injector struct {
	name, fault string
	weight      float64 // probability relative to the other injectors
	aim         aim
	shortest    time.Duration // minimum duration
	longest     time.Duration // maximum duration
	few, many   int           // minimum and maximum of [history.Act].Number
	most        int           // maximum number of uses per run, or 0 for no limit
	room        time.Duration // time that must remain in the run
	note        func(r *rand.Rand, a *history.Act, pods int)
	do          func(s *injection) error
}

// injectors lists all injectors. The weights are based on public reports of problems in job runners. Commands that race with jobs, which
// make up a tenth of all faults, come from the workload instead.
var injectors = slices.Concat(processInjectors, failpointInjectors, backlogInjectors, networkInjectors, databaseInjectors, jobInjectors, workerInjectors)

// The independent random number streams that are derived from a seed.
const (
	nemesisStream uint64 = iota + 1
	failpointStream
	workloadStream
)

// PlanFor returns the plan for a seed. The same seed and options always produce the same plan.
func PlanFor(seed uint64, o PlanOptions) []history.Act {
	if o.For <= 0 {
		o.For = time.Minute
	}
	if o.Pods <= 0 {
		o.Pods = 3
	}
	p := &planner{PlanOptions: o, r: rand.New(rand.NewPCG(seed, nemesisStream)), points: rand.New(rand.NewPCG(seed, failpointStream)),
		busy: make([]time.Duration, o.Pods), busyWorkers: make([]time.Duration, o.Workers), until: map[string]time.Duration{}, done: map[string]int{}}
	for _, v := range injectors {
		if len(o.Only) == 0 || slices.Contains(o.Only, v.fault) {
			p.injectors = append(p.injectors, v)
		}
	}
	for at := firstAct; at < o.For; {
		if p.opens(at) || p.act(at) {
			at += actsApart/2 + time.Duration(p.r.Int64N(int64(actsApart))).Round(time.Millisecond)
		} else {
			at += 500 * time.Millisecond // no fault fits at this time
		}
	}
	return p.plan
}

// opening lists the injectors that start every unrestricted plan. Without them, a short plan might leave some invariants with nothing to
// check.
var opening = []string{"kill", "worker_kill"}

// opens plans the next fault of the opening. It returns false once the opening is over.
func (p *planner) opens(at time.Duration) bool {
	if len(p.Only) > 0 || len(p.plan) >= len(opening) {
		return false
	}
	v, _ := injectorNamed(opening[len(p.plan)])
	if !p.fits(v, at) {
		return false
	}
	p.add(v, at)
	return true
}

type planner struct {
	PlanOptions
	r, points   *rand.Rand
	injectors   []injector
	plan        []history.Act
	busy        []time.Duration          // by pod, when it will be back at work
	busyWorkers []time.Duration          // by worker, when it will be back at work
	allBusy     time.Duration            // when the next outage of the whole fleet may begin
	until       map[string]time.Duration // by injector, when its current use ends
	done        map[string]int           // by injector, the number of planned faults so far
}

// act plans one fault that begins at the given time, if one fits.
func (p *planner) act(at time.Duration) bool {
	var fitting []injector
	total := 0.0
	for _, v := range p.injectors {
		if p.fits(v, at) {
			fitting = append(fitting, v)
			total += v.weight
		}
	}
	if len(fitting) == 0 {
		return false
	}
	pick := p.r.Float64() * total
	i := 0
	for ; i < len(fitting)-1 && pick >= fitting[i].weight; i++ {
		pick -= fitting[i].weight
	}
	p.add(fitting[i], at)
	return true
}

// fits reports whether v may begin at the given time. It must end before the run ends and must not be active already. If it affects a
// single pod, at least one other pod must be unaffected. If it affects all pods, the fleet must have had time to recover from the last
// outage.
func (p *planner) fits(v injector, at time.Duration) bool {
	if at+max(v.shortest, v.room) > p.For || p.until[v.name] > at || v.most > 0 && p.done[v.name] >= v.most {
		return false
	}
	switch v.aim {
	case atPod:
		return len(free(p.busy, at)) > 1
	case atWorker:
		return len(free(p.busyWorkers, at)) > 0
	case atAll:
		return p.allBusy <= at
	}
	return true
}

// free returns the indexes of the targets that no fault affects at the given time.
func free(busy []time.Duration, at time.Duration) (list []int) {
	for i, until := range busy {
		if until <= at {
			list = append(list, i)
		}
	}
	return list
}

func (p *planner) add(v injector, at time.Duration) {
	a := history.Act{No: len(p.plan) + 1, At: at, Fault: v.fault, Verb: v.name}
	longest := min(v.longest, p.For-at)
	a.For = v.shortest
	if longest > v.shortest {
		a.For += time.Duration(p.r.Int64N(int64(longest - v.shortest))).Round(time.Millisecond)
	}
	if v.many > 0 {
		a.Number = v.few + p.r.IntN(v.many-v.few+1)
	}
	switch v.aim {
	case atPod:
		free := free(p.busy, at)
		i := free[p.r.IntN(len(free))]
		a.Pod, p.busy[i] = podName(i), at+a.For+comeBack
	case atWorker:
		free := free(p.busyWorkers, at)
		i := free[p.r.IntN(len(free))]
		a.Pod, p.busyWorkers[i] = workerName(i), at+a.For+comeBack
	case atAll:
		p.allBusy = at + a.For + comeBack + airBetween
	}
	if v.note != nil {
		from := p.r
		if v.points() {
			from = p.points
		}
		a.Note = map[string]any{}
		v.note(from, &a, p.Pods)
	}
	p.until[v.name] = at + a.For + time.Millisecond
	p.done[v.name]++
	p.plan = append(p.plan, a)
}

// points reports whether an injector uses failpoints, which use a separate random number stream.
func (v injector) points() bool {
	return slices.ContainsFunc(failpointInjectors, func(f injector) bool { return f.name == v.name })
}

func injectorNamed(name string) (injector, bool) {
	i := slices.IndexFunc(injectors, func(v injector) bool { return v.name == name })
	if i < 0 {
		return injector{}, false
	}
	return injectors[i], true
}

// podName returns the name of the ith pod, counting from 0.
func podName(i int) string { return fmt.Sprint("pod", i+1) }
