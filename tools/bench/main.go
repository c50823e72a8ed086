// Command bench measures the performance of Trapeze, mostly through its public API, with default options unless a result states otherwise.
// It uses the server at DATABASE_URL or, if DATABASE_URL is not set, starts a PostgreSQL server with fsync and synchronous_commit on. The
// workloads are listed in list.go.
//
//	make bench                               everything except workloads that must be named
//	make bench ARGS='-only drain,chains'     some workloads
//	make bench ARGS='-json'                  one JSON object per line
//	make bench ARGS='-scale 0.1'             smaller sizes, to check that it works
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// line is the result of one workload.
type line struct {
	Name    string             `json:"name"`
	What    string             `json:"what"`
	Goal    string             `json:"goal"`
	Figures map[string]float64 `json:"figures"`
	order   []string
}

func (l *line) set(name string, value float64) {
	if l.Figures == nil {
		l.Figures = map[string]float64{}
	}
	l.Figures[name] = value
	l.order = append(l.order, name)
}

func main() {
	if len(os.Args) > 1 {
		if run := processes[os.Args[1]]; run != nil {
			if err := run(); err != nil {
				fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	only := flag.String("only", "", "`workloads` to run, separated by commas; default: all but "+strings.Join(whenNamed, ", ")+": "+strings.Join(names(), ", "))
	asJSON := flag.Bool("json", false, "print one JSON object per line")
	scale := flag.Float64("scale", 1, "multiply the size of every workload: 0.1 tries them out in a minute")
	pods := flag.String("pods", "1,5,20,50", "`sizes` of the fleets that the workload fleet measures, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, *only, *pods, *asJSON, *scale); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, only, pods string, asJSON bool, scale float64) (err error) {
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	fleets, err := fleetSizes(pods)
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		server, err := pgembed.Start(ctx, pgembed.Options{})
		if err != nil {
			return err
		}
		defer server.Stop()
		url = server.URL()
	}
	b := &lab{url: url, scale: scale, quiet: asJSON, fleets: fleets}
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	if !asJSON {
		fmt.Printf("PostgreSQL %s, %d CPUs shared by client and server, %s, default options unless stated\n\n", version, runtime.NumCPU(), runtime.Version())
	}
	for _, w := range chosen {
		l, err := w.do(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		l.Name = w.name
		if asJSON {
			if err := json.NewEncoder(os.Stdout).Encode(l); err != nil {
				return err
			}
			continue
		}
		fmt.Printf("%s: %s\n", l.Name, l.What)
		for _, figure := range l.order {
			fmt.Printf("  %-32s %12.3f\n", figure, l.Figures[figure])
		}
		fmt.Printf("  goal: %s\n\n", l.Goal)
	}
	return nil
}
