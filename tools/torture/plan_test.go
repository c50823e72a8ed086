package torture

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestASeedHasOnePlan(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	o := PlanOptions{For: 5 * time.Minute, Pods: 4, Workers: 2}
	text := func(seed uint64) string {
		raw, err := json.Marshal(PlanFor(seed, o))
		is.NoErr(err)
		return string(raw)
	}
	seen := map[string]bool{}
	for seed := range uint64(50) {
		is.Equal(text(seed), text(seed)) // the same seed produces the same plan
		seen[text(seed)] = true
	}
	is.Equal(len(seen), 50) // different seeds produce different plans
}

func TestPlanActivityAndDuration(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	used := map[string]int{}
	for seed := range uint64(200) {
		o := PlanOptions{For: 5 * time.Minute, Pods: 3 + int(seed%4), Workers: 2}
		plan := PlanFor(seed, o)
		is.True(len(plan) > 45 && len(plan) < 75) // about one fault every five seconds
		is.Equal([]string{plan[0].Verb, plan[1].Verb}, opening)
		for i, a := range plan {
			is.Equal(a.No, i+1)
			is.True(a.At+a.For <= o.For)            // undone before the quiet tail
			is.True(i == 0 || a.At >= plan[i-1].At) // in time order
			v, _ := injectorNamed(a.Verb)
			is.True(a.Pod == "" || a.Pod <= podName(o.Pods-1) || v.aim == atWorker && a.Pod <= workerName(o.Workers-1)) // the target is a member of the fleet
			used[a.Verb]++
		}
	}
	for _, v := range injectors {
		is.True(used[v.name] > 0) // every injector is used
	}
	t.Log(used)
}

func TestPlanOutageOfAllPods(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		o := PlanOptions{For: 3 * time.Minute, Pods: 3 + int(seed%4), Workers: 2}
		plan := PlanFor(seed, o)
		out := time.Duration(0) // time since a pod was last working
		for at := time.Duration(0); at < o.For; at += 100 * time.Millisecond {
			if anyWell(plan, o.Pods, at) {
				out = 0
			} else if out += 100 * time.Millisecond; out > longestOutage {
				t.Fatalf("seed %d: at %s no pod has been well for %s", seed, at, out)
			}
		}
	}
}

// anyWell reports whether any pod is working at the given time, assuming that each pod needs some time to recover after a fault.
func anyWell(plan []history.Act, pods int, at time.Duration) bool {
	ill := map[string]bool{}
	for _, a := range plan {
		if at < a.At || at > a.At+a.For+comeBack {
			continue
		}
		v, _ := injectorNamed(a.Verb)
		if v.aim == atAll {
			return false
		}
		if v.aim == atWorker {
			continue // a killed pod is soon back, so the next fault does not wait for it
		}
		ill[a.Pod] = a.Pod != ""
	}
	delete(ill, "")
	return len(ill) < pods
}

func TestPlanForRequestedFault(t *testing.T) {
	t.Parallel()
	for _, f := range Faults {
		if len(f.Injectors) == 0 {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			plan := PlanFor(1, PlanOptions{For: 5 * time.Minute, Pods: 3, Workers: 2, Only: []string{f.Name}})
			is.True(len(plan) > 2) // the fault can be planned
			for _, a := range plan {
				is.Equal(a.Fault, f.Name)
				is.True(slices.Contains(f.Injectors, a.Verb)) // only the fault's injectors are used
			}
		})
	}
}

func TestFaultTableEntries(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var want []string
	for n := 1; n <= 72; n++ {
		if n <= 40 || n == 49 || n >= 69 {
			want = append(want, fmt.Sprint("F", n))
		}
	}
	var names []string
	for _, f := range Faults {
		names = append(names, f.Name)
		ways := 0
		for _, is := range []bool{len(f.Injectors) > 0, f.Always != "", f.Cannot != ""} {
			if is {
				ways++
			}
		}
		is.Equal(ways, 1)     // exactly one of these: injectors, an explanation of how every run causes the fault, or a reason why no run can
		is.True(f.What != "") // the fault has a description
	}
	is.Equal(names, want) // each fault is listed exactly once
	injectorsOf := map[string]bool{}
	for _, v := range injectors {
		is.True(!injectorsOf[v.name]) // injector names are unique
		injectorsOf[v.name] = true
		_, listed := FaultNamed(v.fault)
		is.True(listed) // every injector belongs to a fault
		is.True(v.longest == 0 || v.longest >= v.shortest)
		is.True(v.aim != atAll || v.longest+comeBack <= longestOutage) // outages are short enough
	}
}

func TestAPlanSurvivesItsFile(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, a := range PlanFor(3, PlanOptions{For: 10 * time.Minute, Pods: 3, Workers: 2}) {
		raw, err := json.Marshal(a)
		is.NoErr(err)
		var read history.Act
		is.NoErr(json.Unmarshal(raw, &read))
		is.Equal(read, a) // a replay reads back the same plan
	}
}
