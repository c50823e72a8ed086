// Command embed is an echo service whose processes run its jobs themselves. POST /greet/NAME starts a two-step pipeline.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

type Compose struct{ Name string }
type Deliver struct{ Text string }

func (Compose) Kind() string { return "compose" }
func (Deliver) Kind() string { return "deliver" }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Println(serve(ctx, os.Getenv("DATABASE_URL"), "127.0.0.1:8080", func(s string) error { return log.Output(2, s) }))
}

func serve(ctx context.Context, database, addr string, deliver func(string) error) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{})
	if err = errors.Join(err, migrate.Up(ctx, pool, runner.Options{})); err != nil {
		return err
	}
	defer r.Close()
	runner.Handle(r, func(_ context.Context, j *runner.Job[Compose]) (*runner.Outcome, error) {
		return runner.Then(Deliver{Text: "hello " + j.Args.Name}), nil // the next step: same commit, same process
	})
	runner.Handle(r, func(_ context.Context, j *runner.Job[Deliver]) (*runner.Outcome, error) {
		return nil, deliver(j.Args.Text)
	})
	r.DeclareSchedule("nightly", "30 2 * * *", Compose{Name: "all"}, runner.Zone("Europe/Zurich")) // every night, once across all pods
	e := echo.New()
	e.POST("/greet/:name", func(c echo.Context) error {
		made, err := r.Enqueue(c.Request().Context(), Compose{Name: c.Param("name")})
		if err != nil {
			return err
		}
		return c.JSON(202, map[string]int64{"job": made.ID}) // accepted: it can run on any pod
	})
	go func() { _ = e.Start(addr) }()
	defer e.Close()
	return r.Run(ctx) // runs until ctx is cancelled, then drains
}
