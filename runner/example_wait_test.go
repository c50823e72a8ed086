package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// serve creates a runner on a new database, calls set to register handlers, and runs it until stop is called.
func serve(set func(r *runner.Runner)) (ctx context.Context, r *runner.Runner, stop func()) {
	url, drop := pgtest.ExampleURL()
	ctx, cancel := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	if r, err = runner.New(pool, runner.Options{}); err != nil {
		log.Fatal(err)
	}
	set(r)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return ctx, r, func() {
		cancel()
		if err := <-ended; err != nil {
			log.Fatal(err)
		}
		r.Close()
		pool.Close()
		drop()
	}
}

type Square struct{ N int }

func (Square) Kind() string { return "square" }

// Any process can wait for a job, even one that runs no jobs.
func ExampleResult() {
	ctx, r, stop := serve(func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Square]) (*runner.Outcome, error) {
			if j.Args.N > 1000 {
				return nil, runner.Permanent(errors.New("too large"))
			}
			return runner.Done(j.Args.N * j.Args.N), nil
		})
	})
	defer stop()
	for _, n := range []int{12, 5000} {
		made, err := r.Enqueue(ctx, Square{N: n})
		if err != nil {
			log.Fatal(err)
		}
		square, err := runner.Result[int](ctx, r, made.ID)
		var end *runner.EndError
		switch {
		case errors.As(err, &end):
			fmt.Println(end.State, "for:", end.Message)
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("the square is", square)
		}
	}
	// Output:
	// the square is 144
	// failed for: too large
}

// Wait returns the job, whether or not it succeeded.
func ExampleRunner_Wait() {
	ctx, r, stop := serve(func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Square]) (*runner.Outcome, error) { return nil, nil })
	})
	defer stop()
	made, err := r.Enqueue(ctx, Square{N: 3})
	if err != nil {
		log.Fatal(err)
	}
	j, err := r.Wait(ctx, made.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(j.Kind, j.State, "at attempt", j.Attempt)
	// Output: square succeeded at attempt 1
}
