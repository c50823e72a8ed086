// Package program is the command line of trapeze: that of package cmd/app with the worked example, the demo and the demo kinds. It is apart
// from cmd/trapeze, so that the tests in e2e can run the program without building it.
package program

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/cmd/app"
	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/runner"
)

// Command returns the commands of package app, plus the demo and the flags of the example. An empty release stands for the version of the
// build.
func Command(release string) *cobra.Command {
	var e example
	root := app.Command(app.Options{Name: "trapeze", Release: release, Register: e.register})
	root.Long = strings.Replace(root.Long, "  trapeze serve ", "  trapeze demo                                    see it work on real data, "+
		"and survive a killed process\n  trapeze serve ", 1)
	show := demoCommand()
	show.GroupID = app.GroupRun
	root.AddCommand(show)
	for _, c := range root.Commands() {
		switch c.Name() {
		case "serve":
			c.Flags().StringVar(&e.files, "files", ".", "folder with the files of the example pipeline")
			unchanged := c.Flags().Lookup("no-migrate")
			unchanged.Usage = "do not migrate the schema or the example's schema"
			e.noMigrate = unchanged.Value.String
		case "worker":
			c.Long += `

This program runs only the demo kinds that need no database (TRAPEZE_DEMO_HANDLERS=true). To run your own handlers, write a program
with package cmd/app or remote/worker.`
			c.Example = strings.ReplaceAll(c.Example, "  ", "  TRAPEZE_DEMO_HANDLERS=true ")
		}
	}
	return root
}

// example registers this program's handlers: the worked example and, if requested, the demo kinds.
type example struct {
	files     string
	noMigrate func() string // returns the value of the flag
}

func (e *example) register(ctx context.Context, r *runner.Runner, pool *pgxpool.Pool) error {
	config, err := cli.Load()
	if err != nil {
		return err
	}
	kinds := kindOptions{Schema: config.Options.Schema, LedgerURL: config.LedgerURL}
	if pool == nil { // a remote worker runs only those kinds that need no database
		if !config.DemoHandlers {
			return cli.Usage("no handlers: set TRAPEZE_DEMO_HANDLERS=true for the demo kinds, or write a worker with package remote/worker")
		}
		registerRemoteKinds(r, kinds)
		return nil
	}
	options := handlers.Options{Dir: e.files}
	if e.noMigrate() != "true" {
		if err := handlers.Setup(ctx, pool, options); err != nil {
			return err
		}
	}
	if err := handlers.Register(r, pool, options); err != nil || !config.DemoHandlers {
		return err
	}
	return registerKinds(ctx, r, pool, kinds)
}
