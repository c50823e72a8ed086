// Command trapeze-temporal is the trapeze command with the Temporal engine and the example pipeline. A service that uses Temporal builds a
// command in the same way, with its own handlers.
package main

import (
	"cmp"
	"context"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/sdk/client"

	"github.com/trapeze-run/trapeze/cmd/app"
	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/internal/demo"
)

func main() {
	root := app.Command(app.Options{Name: "trapeze-temporal", Register: register})
	show := demo.Command()
	show.GroupID = app.GroupRun
	root.AddCommand(show)
	os.Exit(app.Run(context.Background(), root, os.Args[1:]))
}

// register registers the example, with writes that work on both engines, and the Temporal server at TEMPORAL_ADDRESS.
func register(ctx context.Context, r *runner.Runner, pool *pgxpool.Pool) error {
	example := handlers.Options{Fenced: true}
	if err := handlers.Setup(ctx, pool, example); err != nil {
		return err
	}
	if err := handlers.Register(r, pool, example); err != nil {
		return err
	}
	namespace := cmp.Or(os.Getenv("TEMPORAL_NAMESPACE"), "default")
	c, err := client.NewLazyClient(client.Options{HostPort: os.Getenv("TEMPORAL_ADDRESS"), Namespace: namespace})
	if err != nil {
		return err
	}
	return temporal.Open(r, temporal.Options{Client: c, Namespace: namespace, UI: os.Getenv("TEMPORAL_UI")})
}
