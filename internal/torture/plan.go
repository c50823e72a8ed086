package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// PlanOptions bound a plan.
type PlanOptions struct {
	For     time.Duration // the run's length; every act has ended by then. Default 1 minute
	Pods    int           // pod1 … podN. Default 3
	Workers int           // worker1 … workerN. Default none
	Only    []string      // names of faults, such as F24; empty: all
}

// The pace of a plan. An outage of the whole fleet, with the time it takes to come back, stays below longestOutage, and
// between two of them there is airBetween.
const (
	firstAct      = 3 * time.Second
	actsApart     = 5 * time.Second // on average
	comeBack      = 4 * time.Second // until a pod that was hit works again
	airBetween    = 5 * time.Second
	longestOutage = 15 * time.Second
)

// aim is whom a verb harms.
type aim int

const (
	atNobody aim = iota // the fleet goes on beside it
	atPod               // one pod is away for a while
	atAll               // the whole fleet is
	atWorker            // one remote worker is
)

// verb is one way to do harm.
type verb struct {
	name, fault string
	weight      float64 // its chance, relative to the others'
	aim         aim
	shortest    time.Duration // how long it lasts, at least
	longest     time.Duration // and at most
	few, many   int           // what it counts, at least and at most
	most        int           // acts in a run; 0: as many as come
	room        time.Duration // of the run that must be left
	note        func(r *rand.Rand, a *history.Act, pods int)
	do          func(s *strike) error
}

// verbs are all there are. The weights follow the public record of what breaks job runners; a tenth of all harm, commands
// that race with the jobs, is the workload's part.
var verbs = slices.Concat(processVerbs, failpointVerbs, backlogVerbs, networkVerbs, databaseVerbs, jobVerbs, workerVerbs)

// A seed's independent streams of random numbers.
const (
	nemesisStream uint64 = iota + 1
	failpointStream
	workloadStream
)

// PlanFor makes the plan of a seed: the same for the same seed and options.
func PlanFor(seed uint64, o PlanOptions) []history.Act {
	if o.For <= 0 {
		o.For = time.Minute
	}
	if o.Pods <= 0 {
		o.Pods = 3
	}
	p := &planner{PlanOptions: o, r: rand.New(rand.NewPCG(seed, nemesisStream)), points: rand.New(rand.NewPCG(seed, failpointStream)),
		busy: make([]time.Duration, o.Pods), busyFar: make([]time.Duration, o.Workers), until: map[string]time.Duration{}, done: map[string]int{}}
	for _, v := range verbs {
		if len(o.Only) == 0 || slices.Contains(o.Only, v.fault) {
			p.verbs = append(p.verbs, v)
		}
	}
	for at := firstAct; at < o.For; {
		if p.opens(at) || p.act(at) {
			at += actsApart/2 + time.Duration(p.r.Int64N(int64(actsApart))).Round(time.Millisecond)
		} else {
			at += 500 * time.Millisecond // nothing fits yet
		}
	}
	return p.plan
}

// opening are the verbs with which every plan of all faults begins: without them a short one may leave an invariant nothing to judge.
var opening = []string{"kill", "worker_kill"}

// opens plans the next act of the opening, unless it is over.
func (p *planner) opens(at time.Duration) bool {
	if len(p.Only) > 0 || len(p.plan) >= len(opening) {
		return false
	}
	v, _ := verbNamed(opening[len(p.plan)])
	if !p.fits(v, at) {
		return false
	}
	p.add(v, at)
	return true
}

type planner struct {
	PlanOptions
	r, points *rand.Rand
	verbs     []verb
	plan      []history.Act
	busy      []time.Duration          // by pod: until when it is away
	busyFar   []time.Duration          // by worker
	allBusy   time.Duration            // until when no other outage of the whole fleet may begin
	until     map[string]time.Duration // by verb: until when it is at work
	done      map[string]int           // by verb: how many acts
}

// act plans one act that begins at a moment, if there is one that fits.
func (p *planner) act(at time.Duration) bool {
	var fitting []verb
	total := 0.0
	for _, v := range p.verbs {
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

// fits reports whether v may begin at a moment: it ends in time, it is not at work already, it leaves one pod alone or,
// when it is at all of them, the fleet has had some air since the last time.
func (p *planner) fits(v verb, at time.Duration) bool {
	if at+max(v.shortest, v.room) > p.For || p.until[v.name] > at || v.most > 0 && p.done[v.name] >= v.most {
		return false
	}
	switch v.aim {
	case atPod:
		return len(free(p.busy, at)) > 1
	case atWorker:
		return len(free(p.busyFar, at)) > 0
	case atAll:
		return p.allBusy <= at
	}
	return true
}

// free lists those whom nobody harms at a moment.
func free(busy []time.Duration, at time.Duration) (list []int) {
	for i, until := range busy {
		if until <= at {
			list = append(list, i)
		}
	}
	return list
}

func (p *planner) add(v verb, at time.Duration) {
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
		free := free(p.busyFar, at)
		i := free[p.r.IntN(len(free))]
		a.Pod, p.busyFar[i] = workerName(i), at+a.For+comeBack
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

// points reports whether a verb arms failpoints, which have a stream of their own.
func (v verb) points() bool {
	return slices.ContainsFunc(failpointVerbs, func(f verb) bool { return f.name == v.name })
}

func verbNamed(name string) (verb, bool) {
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == name })
	if i < 0 {
		return verb{}, false
	}
	return verbs[i], true
}

// podName is the name of the i-th pod, from 0.
func podName(i int) string { return fmt.Sprint("pod", i+1) }
