package remote_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// On-failure jobs work on remote workers as they do on pods: outcomes, steps and children can request them, and their handlers can read the
// failure.
func TestAFailureIsFollowedElsewhere(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{MaxAttempts: 1}, server.Options{})
	seen := make(chan string, 10)
	type handled = runner.Job[runner.Raw]
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-1"}, func(r *runner.Runner) {
		for kind, handler := range map[string]runner.Func[runner.Raw]{
			"fan": func(context.Context, *handled) (*runner.Outcome, error) {
				bad := runner.With(raw("bad", `1`), runner.OnFailure(raw("note", `"child"`)))
				return runner.FanOut(bad, raw("bad", `2`)).Join(raw("decide", `{}`), runner.Always).OnFailureOrCancel(raw("note", `"fan"`)), nil
			},
			"decide": func(context.Context, *handled) (*runner.Outcome, error) {
				return runner.Then(runner.Chain(raw("ok", `{}`), runner.With(raw("bad", `3`), runner.OnFailure(raw("note", `"own"`))))).EndChain().OnFailure(raw("note", `"decided"`)), nil
			},
			"ok":  func(context.Context, *handled) (*runner.Outcome, error) { return nil, nil },
			"bad": func(_ context.Context, j *handled) (*runner.Outcome, error) { return nil, errors.New("no") },
			"note": func(ctx context.Context, j *handled) (*runner.Outcome, error) {
				f, err := j.Failure(ctx)
				seen <- fmt.Sprintf("%s %s%s %s", j.Args.JSON, f.Kind, f.JSON, f.Error)
				return nil, err
			},
		} {
			runner.HandleRaw(r, kind, handler)
		}
	})
	// The outcome of decide replaces the step "nobody", which would have failed because it has no handler.
	id := submit(t, p, runner.Chain(raw("fan", `{}`), raw("nobody", `{}`)))
	var notes []string
	for range 4 {
		notes = append(notes, <-seen)
	}
	child := slices.Index(notes, `"child" bad1 no`) // this note may arrive at any position
	is.True(child >= 0)
	is.Equal(slices.Delete(notes, child, child+1), []string{`"own" bad3 no`, `"decided" bad3 no`, `"fan" bad3 no`})
	is.Equal(*ends(t, p, id, job.Succeeded).Reason, job.ReasonChildrenFailed)
	err := make(chan error, 1)
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-2"}, func(r *runner.Runner) {
		runner.HandleRaw(r, "lone", func(ctx context.Context, j *handled) (*runner.Outcome, error) {
			_, none := j.Failure(ctx)
			err <- none
			return nil, nil
		})
	})
	submit(t, p, raw("lone", `{}`))
	is.True(errors.Is(<-err, job.ErrNotFound))
}

// The pod that records the outcome calls its hooks for the failed attempts and the completions of a remote worker's jobs. The worker's
// middleware sees each attempt.
func TestHooksForRemoteFailures(t *testing.T) {
	is := is.New(t)
	told := make(chan string, 10)
	note := func(_ context.Context, e job.End) {
		told <- fmt.Sprint(e.Kind, e.Attempt, " ", e.State, " ", e.Reason, " ", e.Error)
	}
	p := startPod(t, pgtest.Pool(t), runner.Options{OnEnd: note, OnRetry: note}, server.Options{})
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: quiet, Middleware: []runner.Middleware{
		func(ctx context.Context, j *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
			_, err := next(ctx)
			return nil, fmt.Errorf("try %d: %w", j.Attempt(), err)
		},
	}})
	is.NoErr(err)
	defer r.Close()
	runner.HandleRaw(r, "bad", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, errors.New("no") },
		runner.Retry(2, job.Backoff{Base: time.Millisecond}))
	w, err := worker.New(r, worker.Options{Server: p.url, Name: "gpu-1", Token: "gpu", Slots: 1, Logger: quiet})
	is.NoErr(err)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	submit(t, p, raw("bad", `1`))
	is.Equal([]string{<-told, <-told}, []string{"bad1 pending error try 1: no", "bad2 failed attempts_exhausted try 2: no"})
	stop()
	is.NoErr(<-ran)
}
