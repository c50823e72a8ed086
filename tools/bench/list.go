package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// workloads lists all workloads in the order in which they run.
var workloads = []workload{
	{"takeover", (*lab).takeover},
	{"handoff", (*lab).handoff},
	{"drain", (*lab).drain},
	{"chains", (*lab).chains},
	{"fan-out", (*lab).fanOut},
	{"subjects", (*lab).subjects},
	{"keys", (*lab).keys},
	{"dead-rows", (*lab).deadRows},
	{"lanes", (*lab).lanes},
	{"fleet", (*lab).fleet},
	{"standby", (*lab).standby},
	{"remote", (*lab).remote},
	{"pages", (*lab).pages},
}

// whenNamed lists workloads that run only if they are named, because they take long.
var whenNamed = []string{"pages"}

// processes maps the program's first argument to the function that the program runs when it is started as a child process.
var processes = map[string]func() error{
	"pod":       podProcess,
	"fleet-pod": fleetPodProcess,
	"submitter": submitterProcess,
}

// workload is one benchmark. Its sizes are multiplied by the lab's scale.
type workload struct {
	name string
	do   func(*lab, context.Context) (line, error)
}

func names() (all []string) {
	for _, w := range workloads {
		all = append(all, w.name)
	}
	return all
}

// choose returns the workloads in a comma-separated list. If the list is empty, it returns all workloads except those in whenNamed.
func choose(only string) (chosen []workload, err error) {
	if only == "" {
		return slices.DeleteFunc(slices.Clone(workloads), func(w workload) bool { return slices.Contains(whenNamed, w.name) }), nil
	}
next:
	for name := range strings.SplitSeq(only, ",") {
		for _, w := range workloads {
			if w.name == name {
				chosen = append(chosen, w)
				continue next
			}
		}
		return nil, fmt.Errorf("unknown workload %q: want some of %s", name, strings.Join(names(), ", "))
	}
	return chosen, nil
}
