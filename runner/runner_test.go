package runner_test

import (
	"context"
	"flag"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// TestMain runs four parallel tests at a time at least, because most of their time they wait. The flag -parallel overrides it.
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

// run starts a runner and stops it with the test.
func run(t *testing.T, r *runner.Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.Close()
	}
	t.Cleanup(stop)
	pgtest.Wait(t, "the runner is ready", func() bool {
		ready, reasons := r.Ready()
		return ready || slices.Contains(reasons, runner.ReasonDrained)
	})
	return stop
}

func ended(t *testing.T, r *runner.Runner, id int64) job.Job {
	t.Helper()
	var j job.Job
	pgtest.Wait(t, "the job ends", func() bool {
		var err error
		j, err = r.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return j.State.Terminal()
	})
	return j
}

func TestAStepHandsOverToTheNextInTheSameProcess(t *testing.T) {
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
	id, err := r.Enqueue(t.Context(), first{N: 1}, runner.Subject("travel/2025"))
	is.NoErr(err)
	child := <-got
	is.Equal(child.Args.N, 2)
	is.Equal(child.Path(), "fast")
	is.Equal(child.Subject(), "travel/2025") // the subject is inherited
	is.Equal(child.PipelineID(), id)
	var result int
	is.NoErr(child.Parent(t.Context(), &result))
	is.Equal(result, 41)
	is.Equal(ended(t, r, id).State, job.Succeeded)
	is.Equal(ended(t, r, child.ID()).State, job.Succeeded)
}
