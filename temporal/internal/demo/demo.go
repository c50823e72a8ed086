// Package demo runs the example pipeline on Trapeze's pods and on Temporal, kills the pod that is running it on each engine, and compares
// the totals. It starts a PostgreSQL server and a Temporal server and stops both at the end.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/devserver"
)

// Command returns the demo command.
func Command() *cobra.Command {
	engine := temporal.Name
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run the example pipeline on both engines, and kill a pod during it",
		Long: `Run the example pipeline on 20,000 real flights, first on Trapeze's pods and then in a lane of Temporal: CSV ingest, factor
sync, an emission recalculation for each of 220 airports, and the totals that join them. On both engines, kill -9 the pod that
runs the ingest. The totals are equal to the last digit.

The demo starts a PostgreSQL and a Temporal server with its data in memory, and stops both at the end.`,
		Example: "  trapeze-temporal demo --engine temporal",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			engines := []string{job.EnginePostgreSQL, temporal.Name}
			if engine == job.EnginePostgreSQL {
				engines = engines[:1]
			} else if engine != temporal.Name {
				return fmt.Errorf("unknown engine %q: want %s or %s", engine, job.EnginePostgreSQL, temporal.Name)
			}
			return run(c.Context(), c.OutOrStdout(), engines)
		},
	}
	c.Flags().StringVar(&engine, "engine", engine, "temporal for both engines, or postgres")
	c.AddCommand(podCommand())
	return c
}

// year is the year covered by the flights and their factors.
const year = 2024

// demo is one run of the demo.
type demo struct {
	out      io.Writer
	pool     *pgxpool.Pool
	settings podSettings
	zero     time.Time
}

// schemaOf returns the name of the schema for the example's tables, which differs by engine so that the runs share no data.
func schemaOf(engine string) string { return "co2_" + engine }

func run(parent context.Context, out io.Writer, engines []string) (err error) {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{out: out}
	d.say("Starting PostgreSQL and a Temporal server ...")
	server, err := pgembed.Start(ctx, pgembed.Options{})
	if err != nil {
		return fmt.Errorf("start PostgreSQL for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := migrate.Up(ctx, server.URL(), "trapeze"); err != nil {
		return err
	}
	far := devserver.Start()
	defer far.Stop()
	d.settings = podSettings{DatabaseURL: server.URL(), Temporal: far.Address(), Namespace: far.Namespace()}
	if d.pool, err = pgxpool.New(ctx, server.URL()); err != nil {
		return err
	}
	defer d.pool.Close()
	all := map[string][]handlers.UnitTotal{}
	for _, engine := range engines {
		if all[engine], err = d.fly(ctx, engine); err != nil {
			return fmt.Errorf("the pipeline on %s: %w", engine, err)
		}
	}
	if len(engines) == 2 {
		if !reflect.DeepEqual(all[engines[0]], all[engines[1]]) {
			return errors.New("the totals differ: this is a bug, please report it")
		}
		d.say("\nThe totals of %d airports are equal to the last digit on both engines.", len(all[engines[0]]))
	}
	return nil
}

// fly runs the pipeline on an engine, kills its pod, and returns the totals.
func (d *demo) fly(ctx context.Context, engine string) (_ []handlers.UnitTotal, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("the pipeline has not ended within 3 minutes"))
	defer cancel()
	d.say("\nEngine %s:", engine)
	example := handlers.Options{Schema: schemaOf(engine), Fenced: true}
	if err := handlers.Setup(ctx, d.pool, example); err != nil {
		return nil, err
	}
	client, err := runner.New(d.pool, runner.Options{PodName: "demo", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	d.settings.CO2 = example.Schema
	first, err := d.start(ctx, engine+"-a")
	if err != nil {
		return nil, err
	}
	defer func() { first.leave() }()
	if err := move(ctx, client, engine); err != nil {
		return nil, err
	}
	d.zero = time.Now()
	made, err := client.Enqueue(ctx, handlers.Ingest{Year: year}, runner.AllowUnregistered(), runner.Subject(fmt.Sprint("travel/", year)))
	if err != nil {
		return nil, err
	}
	d.line("submitted in lane %s, whose engine is %s", job.DefaultLane, engine)
	if err := d.wait(ctx, first, "select count(*) >= 8000 from "+example.Schema+".activities"); err != nil {
		return nil, err
	}
	second, err := d.start(ctx, engine+"-b")
	if err != nil {
		return nil, err
	}
	defer second.leave()
	first.kill()
	d.line("kill -9 %s, which runs the ingest; %s takes over from the last checkpoint", first.name, second.name)
	if err := d.wait(ctx, second, `select count(*) > 0 from trapeze.jobs where kind = 'factor_sync' and pipeline_id = $1`, made.ID); err != nil {
		return nil, err
	}
	d.line("the ingest has ended, and the factor sync begins")
	if err := d.wait(ctx, second, `select status <> 'running' from trapeze.pipeline where id = $1`, made.ID); err != nil {
		return nil, err
	}
	p, err := client.Admin("").Pipeline(ctx, made.ID)
	if err != nil {
		return nil, err
	}
	if p.Status != job.PipelineSucceeded {
		return nil, fmt.Errorf("pipeline %d: %s", p.ID, p.Status)
	}
	result, err := runner.Result[handlers.Totalled](ctx, client, p.LastJob)
	if err != nil {
		return nil, err
	}
	d.line("%s kg CO2e from %d flights of %d airports", result.KgCO2e, result.Flights, result.Units)
	return handlers.ReadTotals(ctx, d.pool, example, year)
}

// move moves the default lane to an engine, like the command trapeze lane set default --engine.
func move(ctx context.Context, r *runner.Runner, engine string) error {
	if _, err := r.Admin("demo").SetLane(ctx, job.DefaultLane, job.LaneChange{Engine: &engine}); err != nil {
		return err
	}
	m, err := r.Admin("demo").ContinueLaneMove(ctx, job.DefaultLane, time.Minute)
	if err == nil && m.TimedOut {
		err = fmt.Errorf("the lane has not moved to %s within a minute", engine)
	}
	return err
}

// wait waits until a query returns true. It returns an error if the pod ends first.
func (d *demo) wait(ctx context.Context, p *podProcess, sql string, args ...any) error {
	for {
		var done bool
		err := d.pool.QueryRow(ctx, "select coalesce(("+sql+"), false)", args...).Scan(&done)
		switch {
		case err != nil:
			return cmp.Or(context.Cause(ctx), err)
		case done:
			return nil
		case !p.alive():
			return fmt.Errorf("%s ended: see its output above", p.name)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(25 * time.Millisecond):
		}
	}
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// line adds a line to the timeline.
func (d *demo) line(format string, args ...any) {
	d.say("  %5.1f s  %s", time.Since(d.zero).Seconds(), fmt.Sprintf(format, args...))
}
