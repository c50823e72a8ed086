package runnertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestHarnessOptionLanes(t *testing.T) {
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

// A harness is idle even if a drained lane or a frozen queue is holding back a job.
func TestHarnessIdleWithClosedLanes(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{Lanes: []runner.LaneSetup{{Name: "slow"}}}, steps)
	admin := h.Runner().Admin("ann")
	_, err := admin.DrainLane(t.Context(), "slow", time.Second)
	is.NoErr(err)
	held, free := h.Enqueue(step{}, runner.Lane("slow")), h.Enqueue(step{})
	h.RunUntilIdle()
	h.RequireState(held, job.Pending)
	h.RequireState(free, job.Succeeded)

	_, err = admin.UndrainLane(t.Context(), "slow")
	is.NoErr(err)
	_, err = admin.Freeze(t.Context(), time.Second)
	is.NoErr(err)
	h.RunUntilIdle()
	h.RequireState(held, job.Pending)

	_, err = admin.Unfreeze(t.Context())
	is.NoErr(err)
	h.RunUntilIdle()
	h.RequireState(held, job.Succeeded)
}

type invoiceMail struct{}

func (invoiceMail) Kind() string { return "invoice_mail" }
