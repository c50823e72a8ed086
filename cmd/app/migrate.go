package app

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/text"
	hostmigrate "github.com/trapeze-run/trapeze/runner/migrate"
)

func newMigrateCommand() *cobra.Command {
	return parent(&cobra.Command{
		Use:   "migrate",
		Short: "Change the database's schema",
		Long: `Migrate the schema of Trapeze's tables to the version of this program, or back. Concurrent runs are safe. serve migrates when
it starts, unless --no-migrate is set. The command works on DATABASE_URL only; it is refused with --server.`,
		Example: `  trapeze migrate up
  trapeze migrate status
  trapeze migrate down --to 0          # drops every table of Trapeze with its data
  trapeze migrate print > trapeze.sql  # for another migration tool`,
	}, newMigrateUp(), newMigrateDown(), newMigrateStatus(), newMigratePrint())
}

// withConfig calls do with a configuration whose database responds and, if writes is set, accepts writes.
func withConfig(c *cobra.Command, writes bool, do func(ctx context.Context, config cli.Settings) error) error {
	config, err := cli.Load()
	if err != nil {
		return err
	}
	if cli.ServerFlag(c, config) != "" {
		return cli.Usage("migrate works on the database, not through a server: set DATABASE_URL, and omit --server (TRAPEZE_SERVER)")
	}
	if config.DatabaseURL == "" {
		return cli.ErrNoDatabase
	}
	pool, err := config.Connect(c.Context(), writes)
	if err != nil {
		return err
	}
	pool.Close()
	return do(c.Context(), config)
}

func newMigrateUp() *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply every pending migration",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withConfig(c, true, func(ctx context.Context, config cli.Settings) error {
				pool, err := config.Connect(ctx, false)
				if err != nil {
					return err
				}
				defer pool.Close()
				if err := hostmigrate.Up(ctx, pool, config.Options); err != nil {
					return err
				}
				return printVersion(c, config.Options.Schema, schema.Latest())
			})
		},
	}
}

func newMigrateDown() *cobra.Command {
	var to int64
	c := &cobra.Command{
		Use:   "down --to N",
		Short: "Undo the migrations after N; drops their tables and columns with the data",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case !c.Flags().Changed("to"):
				return cli.Usage("want --to N, the version to go back to; 0 drops every table and job")
			case to < 0 || to > schema.Latest():
				return cli.Usage("--to %d: want 0 to %d", to, schema.Latest())
			}
			return withConfig(c, true, func(ctx context.Context, config cli.Settings) error {
				if err := migrate.Down(ctx, config.MigrationURL(), config.Options.Schema, to); err != nil {
					return err
				}
				return printVersion(c, config.Options.Schema, to)
			})
		},
	}
	c.Flags().Int64Var(&to, "to", 0, "version to go back to")
	return c
}

func printVersion(c *cobra.Command, schema string, at int64) error {
	return cli.Done(c, map[string]any{"schema": schema, "version": at}, "schema %s is at version %d", schema, at)
}

func newMigrateStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the migrations and when they were applied",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withConfig(c, false, func(ctx context.Context, config cli.Settings) error {
				list, err := migrate.Status(ctx, config.MigrationURL(), config.Options.Schema)
				if err != nil {
					return err
				}
				type migration struct {
					AppliedAt *time.Time `json:"applied_at"`
					Name      string     `json:"name"`
					Version   int64      `json:"version"`
				}
				var shown []migration
				for _, m := range list {
					one := migration{Name: m.Name, Version: m.Version}
					if !m.AppliedAt.IsZero() {
						one.AppliedAt = &m.AppliedAt
					}
					shown = append(shown, one)
				}
				return cli.List(c, "VERSION NAME APPLIED", cli.Rows(shown), func(m migration) []string {
					return []string{strconv.FormatInt(m.Version, 10), m.Name, cmp.Or(text.Clock(m.AppliedAt), "pending")}
				})
			})
		},
	}
}

func newMigratePrint() *cobra.Command {
	var to int64
	c := &cobra.Command{
		Use:   "print [--to N]",
		Short: "Print the migrations as plain SQL, for another migration tool",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := cli.Load()
			if err != nil {
				return err
			}
			if to < 0 || to > schema.Latest() {
				return cli.Usage("--to %d: want 1 to %d, or 0 for all", to, schema.Latest())
			}
			return migrate.Print(c.OutOrStdout(), config.Options.Schema, to)
		},
	}
	c.Flags().Int64Var(&to, "to", 0, "last version to print; 0 for all")
	return c
}
