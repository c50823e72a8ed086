package demokinds

import (
	"context"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// fanOut starts N identical children and, if given, a join. Policy is continue (the default) or fail_fast.
type fanOut struct {
	N      int        `json:"n"`
	Child  chainStep  `json:"child"` // the default is demo.noop
	Join   *chainStep `json:"join"`
	Policy string     `json:"policy"`
}

func (fanOut) Kind() string { return "demo.fanout" }

// mostChildren keeps a huge fan-out from exhausting memory before the runner's limit applies. It is far above the limit of any runner.
const mostChildren = 1_000_000

func (d *demo) fanOut(_ context.Context, c *claim[fanOut]) (*runner.Outcome, error) {
	a := c.job.Args
	if a.N < 0 || a.N > mostChildren {
		return nil, job.Permanent(fmt.Errorf("%w: n %d, want 0 to %d", job.ErrInvalidArgs, a.N, mostChildren))
	}
	if a.Child.Kind == "" {
		a.Child.Kind = "demo.noop"
	}
	o := runner.FanOut(slices.Repeat([]job.Args{a.Child.step()}, a.N)...).Result(map[string]int{"n": a.N})
	if a.Join != nil {
		o.Join(a.Join.step())
	}
	switch a.Policy {
	case "", "continue":
		return o, nil
	case "fail_fast":
		return o.FailFast(), nil
	}
	return nil, job.Permanent(fmt.Errorf("%w: policy %q, want continue or fail_fast", job.ErrInvalidArgs, a.Policy))
}
