// Command program combines the command line of package cmd/app with one handler.
package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/cmd/app"
	"github.com/trapeze-run/trapeze/runner"
)

type Greet struct{ Name string }

func (Greet) Kind() string { return "greet" }

func greet(_ context.Context, j *runner.Job[Greet]) (*runner.Outcome, error) {
	return runner.Done("hello " + j.Args.Name), nil
}

func main() {
	app.Main(func(_ context.Context, r *runner.Runner, _ *pgxpool.Pool) error {
		runner.Handle(r, greet)
		return nil
	})
}
