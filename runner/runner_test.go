package runner_test

import (
	"context"
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// TestMain lets at least four parallel tests run at once, because they spend most of their time waiting. The -parallel flag overrides this.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

type first struct{ N int }

func (first) Kind() string { return "first" }

type second struct{ N int }

func (second) Kind() string { return "second" }

func TestNextStepInSameProcess(t *testing.T) {
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	got := make(chan *runner.Job[second], 1)
	runner.Handle(r, func(ctx context.Context, j *runner.Job[first]) (*runner.Outcome, error) {
		return runner.Then(second{N: j.Args.N + 1}).Result(41), nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[second]) (*runner.Outcome, error) {
		got <- j
		return nil, nil
	})
	run(t, r)
	made, err := r.Enqueue(t.Context(), first{N: 1}, runner.Subject("travel/2025"))
	is.NoErr(err)
	child := <-got
	is.Equal(child.Args.N, 2)
	is.Equal(child.Path(), "fast")
	is.Equal(child.Subject(), "travel/2025") // the subject is inherited
	is.Equal(child.PipelineID(), made.ID)
	var result int
	is.NoErr(child.PreviousResult(t.Context(), &result))
	is.Equal(result, 41)
	is.Equal(waitEnded(t, r, made.ID).State, job.Succeeded)
	is.Equal(waitEnded(t, r, child.ID()).State, job.Succeeded)
}
