package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/runner"
)

// demoCommand returns the demo command. The demo runs the example pipeline on real data and kills a pod halfway through. It uses a temporary
// database or temporary schemas, which it removes afterwards.
func demoCommand() *cobra.Command {
	d := demo{file: handlers.SampleFlights}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run the example pipeline on real data, and kill a pod during it",
		Long: `Run the example pipeline on 20,000 real flights and show its progress: CSV ingest, factor sync, a parallel emission
recalculation for each of 220 airports, and the totals that join them. Each step starts the next one in the same commit. Then
run it again on two pods, kill -9 the pod that runs the ingest, and watch the other pod take over, with an identical result. The
demo lists airports that cannot be recalculated; the pipeline is then partial.

Without DATABASE_URL the demo starts its own PostgreSQL; otherwise it uses separate schemas. At the end it removes them
and leaves no process running. With DATABASE_URL, --keep keeps the schemas.`,
		Example: `  trapeze demo
  trapeze demo --file flights.csv    columns flown_at, origin, destination, distance_miles
  trapeze demo --keep                stay up with the API until Ctrl-C
  trapeze demo --json | jq .takeover_seconds`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("server") {
				return cli.Usage("demo starts its own pods: omit --server")
			}
			config, err := cli.Load()
			if err != nil {
				return err
			}
			config.Options.Version = cli.ProgramVersion(c)
			d.config, d.log = config, demoLogger(config)
			d.screen = newScreen(c.OutOrStdout())
			if cli.WantsJSON(c) {
				d.screen = newScreen(io.Discard)
			}
			d.print = func(v any) error { return cli.JSON(c, v) }
			d.json = cli.WantsJSON(c)
			return d.run(c.Context())
		},
	}
	c.Flags().BoolVar(&d.keepFlag, "keep", false, "keep the API and the data of the demo after the runs")
	c.Flags().StringVar(&d.file, "file", d.file, "CSV file with your own flights")
	c.AddCommand(newDemoPodCommand())
	return c
}

// demo is one run of the demo.
type demo struct {
	*screen
	stage
	file     string
	keepFlag bool
	json     bool
	print    func(v any) error
	began    time.Time
	report   demoReport
	totals   []handlers.UnitTotal
	ingested handlers.Ingested
	total    handlers.Totalled
	shown    []int64 // the pipelines that the user can inspect
}

// demoReport is the output of --json.
type demoReport struct {
	Rows     int64       `json:"rows"`
	Units    int64       `json:"units"`
	Total    json.Number `json:"total_kg_co2e"` // an exact decimal
	Steps    []demoStep  `json:"steps"`
	Takeover float64     `json:"takeover_seconds"` // from SIGKILL to the start of the job on the other pod
	Warnings int64       `json:"warnings"`         // skipped rows, and flights without a factor

	BadUnits []handlers.BadUnit `json:"bad_units,omitempty"` // units that were left out, so that the pipeline is partial
}

// demoStep is one step of the pipeline.
type demoStep struct {
	Kind string  `json:"kind"`
	MS   float64 `json:"ms"` // the handler's duration; for several handlers, from the first start to the last end
	// HandoffMS is the time from the end of the previous step, or from the submission, until this step starts. It includes the commit that
	// finishes the previous step and creates this one.
	HandoffMS float64 `json:"handoff_ms"`
}

func (d *demo) run(parent context.Context) (err error) {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	d.began = time.Now()
	if d.file != handlers.SampleFlights {
		if d.file, err = readablePath(d.file); err != nil {
			return err
		}
	}
	defer func() {
		d.clear()
		if strike := d.stage.strike(); strike != nil {
			err = errors.Join(err, strike)
		}
		if ctx.Err() != nil && parent.Err() == nil && err != nil {
			err = cli.Refused("interrupted: all pods of the demo have been stopped")
		}
	}()
	what := "20,000 real flights"
	if d.file != handlers.SampleFlights {
		what = "the flights in " + d.file
	}
	d.say("Trapeze: a pipeline over %s, twice.", what)
	d.say("")
	if err := d.stage.set(ctx, d.screen); err != nil {
		return err
	}
	if err := d.showPipeline(ctx); err != nil {
		return err
	}
	if err := d.showRecovery(ctx); err != nil {
		return err
	}
	d.say("")
	d.say("Done in %.1f s.", time.Since(d.began).Seconds())
	if d.json {
		if err := d.print(d.report); err != nil {
			return err
		}
	}
	if d.keepFlag {
		return d.stay(ctx)
	}
	d.next(
		"demo --keep", fmt.Sprintf("keeps the API and the data; then try: %s pipeline %d", programName(), d.shown[0]),
		"demo --file my.csv", "your own flights",
		"cron ls", "list schedules; create one with: "+programName()+" cron set",
		"serve", "start your own pod")
	return nil
}

// next prints commands to try. commands alternates arguments and descriptions.
func (d *demo) next(commands ...string) {
	d.say("")
	d.say("Try next:")
	width := 0
	for i := 0; i < len(commands); i += 2 {
		width = max(width, len(commands[i]))
	}
	for pair := range slices.Chunk(commands, 2) {
		d.say("  %s %-*s  %s", programName(), width, pair[0], pair[1])
	}
}

// programName returns the name by which this program was called, so that the user can type the printed commands.
func programName() string {
	self, err := os.Executable()
	switch {
	case err == nil && strings.Contains(self, "/go-build"):
		return "go run ./cmd/trapeze"
	case strings.ContainsRune(os.Args[0], filepath.Separator):
		return os.Args[0]
	}
	return "trapeze"
}

// readablePath makes a path absolute, because pods may have a different working directory. It checks that the file is readable before
// anything is started.
func readablePath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		var f *os.File
		if f, err = os.Open(path); err == nil {
			_ = f.Close()
			return path, nil
		}
	}
	return "", cli.Usage("--file: %w: give the path of a CSV file with the columns flown_at, origin, destination, distance_miles", err)
}

// stay keeps the demo's results available, with its handlers and the API, until the process receives a signal.
func (d *demo) stay(ctx context.Context) error {
	d.keepSchemas = true
	if os.Getenv("TRAPEZE_HTTP_ADDR") == "" {
		if l, err := net.Listen("tcp", d.config.API.Addr); err != nil {
			d.config.API.Addr = "127.0.0.1:0" // another process is using the default port
		} else {
			_ = l.Close()
		}
	}
	r, err := runner.New(d.pool, d.runnerOptions("demo"))
	if err != nil {
		return err
	}
	defer r.Close()
	if err := handlers.Register(r, d.pool, handlers.Options{Schema: d.co2}); err != nil {
		return err
	}
	context.AfterFunc(ctx, r.StopNow)
	if err := cli.Serve(ctx, r, d.config, d.log, d.printReady); err != nil {
		return err
	}
	d.say("Stopped.")
	return nil
}

// printReady prints the URLs to open.
func (d *demo) printReady(line cli.ReadyLine) error {
	if d.json {
		return d.print(line)
	}
	at := line.HTTP
	d.say("")
	d.say("The API is at %s until Ctrl-C.", at)
	d.say("")
	d.say("Try next, in another terminal:")
	if d.server != nil {
		d.say("  export DATABASE_URL='%s'", d.config.DatabaseURL)
	} else {
		d.say("  export TRAPEZE_SCHEMA=%s", d.config.Options.Schema)
	}
	d.say("  %s pipeline %d      the first run as a tree", programName(), d.shown[0])
	d.say("  %s pipeline %d      the run with the killed pod", programName(), d.shown[1])
	d.say("  %s jobs", programName())
	d.say(`  %s enqueue csv_ingest --args '{"year":2025}' --wait`, programName())
	d.say("  curl -sS %s/jobs", at)
	if d.server == nil {
		d.say("")
		d.say("The schemas %s, %s and %s are kept; drop them when you are done.", d.config.Options.Schema, d.co2, d.co2Recovery())
	}
	return nil
}
