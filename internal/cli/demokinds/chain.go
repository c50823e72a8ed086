package demokinds

import (
	"context"
	"encoding/json"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// chain submits a pipeline's steps and, optionally, a compensating step. It does no other work.
type chain struct {
	Steps []chainStep `json:"steps"`
	Undo  *chainStep  `json:"undo"`
}

// chainStep is one step of a chain. Missing fields are inherited from the previous step.
type chainStep struct {
	Kind     string          `json:"kind"`
	Args     json.RawMessage `json:"args"`
	Lane     string          `json:"lane"`
	Subject  *string         `json:"subject"`
	Priority *int            `json:"priority"`
}

func (chain) Kind() string { return "demo.chain" }

func (d *demo) chain(_ context.Context, c *claim[chain]) (*runner.Outcome, error) {
	if len(c.job.Args.Steps) == 0 {
		return nil, nil
	}
	steps := make([]job.Args, len(c.job.Args.Steps))
	for i, s := range c.job.Args.Steps {
		steps[i] = s.step()
	}
	o := runner.Then(runner.Chain(steps[0], steps[1:]...))
	if c.job.Args.Undo != nil {
		o = o.OnFailureOrCancel(c.job.Args.Undo.step())
	}
	return o, nil
}

func (s chainStep) step() job.Args {
	var options []runner.EnqueueOption
	if s.Lane != "" {
		options = append(options, runner.Lane(s.Lane))
	}
	if s.Subject != nil {
		options = append(options, runner.Subject(*s.Subject))
	}
	if s.Priority != nil {
		options = append(options, runner.Priority(*s.Priority))
	}
	return runner.Step(runner.Raw{Name: s.Kind, JSON: s.Args}, options...)
}
