package runner_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

type Measure struct{ Text string }

func (Measure) Kind() string { return "measure" }

type Report struct{ Length int }

func (Report) Kind() string { return "report" }

// This example runs a pipeline of two steps, starting with an empty database.
func Example() {
	url, drop := pgtest.ExampleURL()
	defer drop()
	ctx, stop := context.WithCancel(context.Background())
	emptied(ctx, url)

	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	if err := migrate.Up(ctx, pool, runner.Options{}); err != nil { // creates the tables
		log.Fatal(err)
	}
	r, err := runner.New(pool, runner.Options{})
	if err != nil {
		log.Fatal(err)
	}
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Measure]) (*runner.Outcome, error) {
		return runner.Then(Report{Length: len(j.Args.Text)}), nil // the next step, in the same commit and process
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Report]) (*runner.Outcome, error) {
		fmt.Println("length:", j.Args.Length)
		stop() // a service would run until SIGTERM
		return nil, nil
	})
	if _, err := r.Enqueue(ctx, Measure{Text: "trapeze"}, runner.Subject("texts/1")); err != nil {
		log.Fatal(err)
	}
	err = r.Run(ctx) // runs until ctx is done, then drains

	r.Close()
	pool.Close()
	if err != nil {
		log.Fatal(err)
	}
	// Output: length: 7
}

// emptied removes everything that the example created from the database.
func emptied(ctx context.Context, url string) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `drop schema trapeze cascade`); err != nil {
		log.Fatal(err)
	}
}
