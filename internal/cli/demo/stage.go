package demo

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/runner"
)

// stage is the database that a demo uses: either a separate server, or separate schemas in the database given by DATABASE_URL. The demo
// never touches an existing schema, not even the one in TRAPEZE_SCHEMA.
type stage struct {
	config      cli.Settings // DatabaseURL and Schema refer to the stage
	log         *slog.Logger
	keepSchemas bool // whether to keep the schemas after the demo
	co2         string
	pool        *pgxpool.Pool
	server      *pgembed.Server
}

// demoLogger returns a logger that discards everything unless TRAPEZE_LOG is set, because the screen already shows all important
// information.
func demoLogger(c cli.Settings) *slog.Logger {
	if os.Getenv("TRAPEZE_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger()
}

// set creates the stage. The caller must call strike to remove it, even if set returns an error.
func (s *stage) set(ctx context.Context, screen *screen) error {
	began := time.Now()
	whose := "from DATABASE_URL, in separate schemas"
	s.config.Options.Schema = "trapeze_demo_" + strings.ToLower(rand.Text()[:8])
	s.co2 = s.config.Options.Schema + "_co2"
	if s.config.DatabaseURL == "" {
		screen.say("Starting a PostgreSQL for this demo ...")
		server, err := pgembed.Start(ctx, pgembed.Options{Logger: s.log})
		if err != nil {
			return fmt.Errorf("start PostgreSQL for the demo, since DATABASE_URL is not set: %w", err)
		}
		s.server, s.config.DatabaseURL, s.config.Options.DirectURL = server, server.URL(), ""
		s.config.Options.Schema, s.co2 = "trapeze", "co2"
		whose = "removed after the demo"
	}
	var err error
	if s.pool, err = s.config.Connect(ctx, false); err != nil {
		return err
	}
	if err := migrate.Up(ctx, s.config.MigrationURL(), s.config.Options.Schema); err != nil {
		return err
	}
	for _, schema := range []string{s.co2, s.co2Recovery()} {
		if err := handlers.Setup(ctx, s.pool, handlers.Options{Schema: schema}); err != nil {
			return err
		}
	}
	var version string
	if err := s.pool.QueryRow(ctx, `select split_part(current_setting('server_version'), ' ', 1)`).Scan(&version); err != nil {
		return err
	}
	screen.say("PostgreSQL %s, %s, ready in %.1f s.", version, whose, time.Since(began).Seconds())
	return nil
}

// co2Recovery returns the schema for the second run, which must not use data from the first run.
func (s *stage) co2Recovery() string { return s.co2 + "_recovery" }

// strike removes the stage. It does not use the demo's context, which may already be cancelled.
func (s *stage) strike() (err error) {
	if s.pool != nil {
		if s.server == nil && !s.keepSchemas {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			for _, schema := range []string{s.config.Options.Schema, s.co2, s.co2Recovery()} {
				if _, e := s.pool.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade"); e != nil {
					err = errors.Join(err, fmt.Errorf("drop schema %s of the demo; drop it manually: %w", schema, e))
				}
			}
		}
		s.pool.Close()
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Stop())
	}
	return err
}

// runnerOptions returns the options for each of the demo's pods. They keep the defaults, so that the demo shows typical performance.
func (s *stage) runnerOptions(name string) runner.Options {
	return runner.Options{Name: name, Version: s.config.Options.Version, Schema: s.config.Options.Schema, DirectURL: s.config.Options.DirectURL, Logger: s.log}
}
