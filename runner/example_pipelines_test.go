package runner_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

type Year struct{ Year int }

func (Year) Kind() string { return "year" }

type Unit struct{ Name string }

func (Unit) Kind() string { return "unit" }

type Totals struct{}

func (Totals) Kind() string { return "totals" }

type Publish struct{}

func (Publish) Kind() string { return "publish" }

// during runs a runner on a new database while do is running.
func during(register func(r *runner.Runner), do func(ctx context.Context, r *runner.Runner)) {
	url, drop := pgtest.ExampleURL()
	defer drop()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	register(r)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	do(ctx, r)
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) { // context.Canceled means that the runner was stopped before it had started
		log.Fatal(err)
	}
}

// await waits until a pipeline has ended, and prints its status.
func await(ctx context.Context, r *runner.Runner, id int64) {
	for {
		p, err := r.Admin("").Pipeline(ctx, id)
		if err != nil {
			log.Fatal(err)
		}
		if p.Status.Over() {
			fmt.Println(p.Status)
			return
		}
		select {
		case <-ctx.Done():
			log.Fatal(ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The caller declares the pipeline, so its handlers need not know about each other.
func ExampleChain() {
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Year]) (*runner.Outcome, error) {
			return runner.Done(j.Args.Year * 2), nil
		})
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Publish]) (*runner.Outcome, error) {
			var number int
			err := j.PreviousResult(ctx, &number) // the result of the previous step
			fmt.Println("published", number)
			return nil, err
		})
	}, func(ctx context.Context, r *runner.Runner) {
		made, err := r.Enqueue(ctx, runner.Chain(Year{2024}, Publish{}), runner.Pipeline("numbers"))
		if err != nil {
			log.Fatal(err)
		}
		await(ctx, r, made.ID)
	})
	// Output:
	// published 4048
	// succeeded
}

// A job fans out into several children, and a join runs when all of them have finished.
func ExampleFanOut() {
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Year]) (*runner.Outcome, error) {
			return runner.FanOut(Unit{"north"}, Unit{"south"}, Unit{""}).Join(Totals{}), nil
		})
		runner.Handle(r, func(_ context.Context, j *runner.Job[Unit]) (*runner.Outcome, error) {
			if j.Args.Name == "" {
				return nil, runner.Permanent(errors.New("a unit without a name"))
			}
			return runner.Done(len(j.Args.Name)), nil
		})
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Totals]) (*runner.Outcome, error) {
			total := 0
			for b, err := range j.Branches(ctx) {
				if err != nil {
					return nil, err
				}
				var n int
				if b.Result(&n) != nil {
					fmt.Printf("branch %d %s: %s\n", b.No, b.State, b.Error)
				}
				total += n
			}
			fmt.Println("total", total)
			return runner.Done(total), nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		made, err := r.Enqueue(ctx, Year{2024})
		if err != nil {
			log.Fatal(err)
		}
		await(ctx, r, made.ID)
	})
	// Output:
	// branch 3 failed: a unit without a name
	// total 10
	// partial
}

// This job is completed from outside. While it is waiting, it uses neither a slot nor a goroutine, and survives restarts.
func ExampleDeferred() {
	tokens := make(chan string, 1)
	during(func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Year]) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			if err != nil {
				return nil, err
			}
			tokens <- token // pass it, with j.ID(), to the system that does the work
			return runner.Deferred(2).Join(Totals{}), nil
		})
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Totals]) (*runner.Outcome, error) {
			for part, err := range j.Branches(ctx) {
				if err != nil {
					return nil, err
				}
				var rows int
				_ = part.Result(&rows)
				fmt.Println(part.Part, part.State, rows)
			}
			return nil, nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		made, err := r.Enqueue(ctx, Year{2024})
		if err != nil {
			log.Fatal(err)
		}
		token := <-tokens
		for _, half := range []string{"first", "second", "second"} { // each part counts once
			if err := r.Complete(ctx, made.ID, token, 12, runner.Part(half)); err != nil {
				log.Fatal(err)
			}
		}
		await(ctx, r, made.ID)
	})
	// Output:
	// first succeeded 12
	// second succeeded 12
	// succeeded
}

// A job that cannot do its work yet is snoozed, which does not count as an attempt.
func ExampleSnooze() {
	asked := 0
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Unit]) (*runner.Outcome, error) {
			if asked++; asked < 3 {
				return runner.Snooze(20*time.Millisecond, "the printer is busy"), nil
			}
			fmt.Println("printed in attempt", j.Attempt())
			return nil, nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		made, err := r.Enqueue(ctx, Unit{"north"})
		if err != nil {
			log.Fatal(err)
		}
		await(ctx, r, made.ID)
	})
	// Output:
	// printed in attempt 1
	// succeeded
}
