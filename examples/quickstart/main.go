// Command quickstart is the first example program in the README.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

type Measure struct{ Text string }
type Report struct{ Length int }

func (Measure) Kind() string { return "measure" }
func (Report) Kind() string  { return "report" }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
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
		return runner.Then(Report{Length: len(j.Args.Text)}), nil // the next step: same commit, same process
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Report]) (*runner.Outcome, error) {
		fmt.Println("length:", j.Args.Length)
		stop() // a service would run until SIGTERM
		return nil, nil
	})
	if _, err := r.Enqueue(ctx, Measure{Text: "trapeze"}, runner.Subject("texts/1")); err != nil {
		log.Fatal(err)
	}
	if err := r.Run(ctx); err != nil { // runs until ctx is cancelled, then drains
		log.Fatal(err)
	}
}
