package runnertest_test

import (
	"context"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestTheLanesOfTheOptionsExistBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{Lanes: []runner.LaneSetup{{Name: "slow", Slots: new(1), Kinds: []string{"last"}}, {Name: "vip", Slots: new(2)}}},
		func(r *runner.Runner) {
			steps(r)
			runner.Handle(r, func(context.Context, *runner.Job[invoiceMail]) (*runner.Outcome, error) { return nil, nil })
			r.DeclareSchedule("mails", "@daily", invoiceMail{}, runner.Lane("vip"))
		})
	named, byKind := h.Enqueue(step{}, runner.Lane("vip")), h.Enqueue(last{})
	is.Equal(h.Job(named).Lane, "vip")
	is.Equal(h.Job(byKind).Lane, "slow")
	h.RunUntilIdle()
	h.RequireState(named, job.Succeeded)
	h.RequireState(byKind, job.Succeeded)
}

type invoiceMail struct{}

func (invoiceMail) Kind() string { return "invoice_mail" }
