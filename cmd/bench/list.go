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
	{"rows", (*lab).rows},
	{"rows-queued", (*lab).rowsQueued},
	{"args", (*lab).args},
	{"retries", (*lab).retries},
	{"priorities", (*lab).priorities},
	{"few-slots", (*lab).fewSlots},
	{"subjects", (*lab).subjects},
	{"hot-subject", (*lab).hotSubject},
	{"blocked-head", (*lab).blockedHead},
	{"blocked-claims", (*lab).blockedClaims},
	{"dead-rows", (*lab).deadRows},
	{"lanes", (*lab).lanes},
	{"many-lanes", (*lab).manyLanes},
	{"tenants", (*lab).tenants},
	{"mixed", (*lab).mixed},
	{"elsewhere", (*lab).elsewhere},
	{"pooler", (*lab).pooler},
	{"sleepers", (*lab).sleepers},
	{"standby", (*lab).standby},
	{"poison", (*lab).poison},
	{"events", (*lab).events},
	{"progress", (*lab).progress},
	{"fan-out", (*lab).fanOut},
	{"remote", (*lab).remote},
	{"remote-backlog", (*lab).remoteBacklog},
	{"schedules", (*lab).schedules},
	{"streams", (*lab).streams},
	{"fleet", (*lab).fleet},
	{"soak", (*lab).soak},
	{"growth", (*lab).growth},
	{"held-day", (*lab).heldDay},
	{"pages", (*lab).pages},
}

// whenNamed lists workloads that run only if they are named. The workload growth, for example, takes half an hour and 15 GB of disk space.
var whenNamed = []string{"growth", "held-day", "pages"}

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
