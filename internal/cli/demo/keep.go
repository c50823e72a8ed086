package demo

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"context"
	"net"
	"os"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/runner"
)

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
	context.AfterFunc(ctx, r.HandBackNow)
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
