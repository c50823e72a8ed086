package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestTwoSingleSlotPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	hold := map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil }}
	a := start(t, pool, runner.Options{Slots: 1, PollInterval: 100 * time.Millisecond}, hold)
	b := start(t, pool, runner.Options{Slots: 1, PollInterval: 100 * time.Millisecond}, hold)
	first, second, third := enqueue(t, a, rawArgs("k")), enqueue(t, a, rawArgs("k")), enqueue(t, a, rawArgs("k"))
	pods := map[string]bool{*inState(t, a, first, job.Running).Pod: true, *inState(t, a, second, job.Running).Pod: true}
	is.Equal(pods, map[string]bool{a.PodID(): true, b.PodID(): true}) // each pod runs one job
	is.Equal(get(t, a, third).State, job.Pending)                     // no pod has a free slot
	open()
	inState(t, a, third, job.Succeeded)
}
