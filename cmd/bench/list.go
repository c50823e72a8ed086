package main

import (
	"context"
	"fmt"
	"strings"
)

// workloads is what can be measured, in the order in which it is.
var workloads = []workload{
	{"takeover", (*lab).takeover},
	{"handoff", (*lab).handoff},
	{"drain", (*lab).drain},
	{"chains", (*lab).chains},
	{"deadrows", (*lab).deadRows},
}

// workload measures one thing; its sizes are multiplied by the lab's scale.
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

// choose finds the workloads of a list with commas; all of them when it is empty.
func choose(only string) (chosen []workload, err error) {
	if only == "" {
		return workloads, nil
	}
next:
	for name := range strings.SplitSeq(only, ",") {
		for _, w := range workloads {
			if w.name == name {
				chosen = append(chosen, w)
				continue next
			}
		}
		return nil, fmt.Errorf("unknown workload %q; there are %s", name, strings.Join(names(), ", "))
	}
	return chosen, nil
}
