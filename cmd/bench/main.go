// Command bench measures what Trapeze promises, through its public API with default options, on a PostgreSQL of its own
// with fsync and synchronous_commit on: takeover after kill -9, idle hand-off, drain, and chains.
//
//	go run ./cmd/bench                        everything
//	go run ./cmd/bench -only drain,chains     a part
//	go run ./cmd/bench -json                  one JSON object a line
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

// line is one measured workload.
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
	if len(os.Args) > 1 && os.Args[1] == "pod" {
		if err := podProcess(); err != nil {
			fmt.Fprintln(os.Stderr, "bench pod:", err)
			os.Exit(1)
		}
		return
	}
	only := flag.String("only", "takeover,handoff,drain,chains", "which workloads, separated by commas")
	asJSON := flag.Bool("json", false, "one JSON object a line")
	rounds := flag.Int("rounds", 10, "rounds of takeover")
	jobs := flag.Int("jobs", 100_000, "jobs of drain")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, strings.Split(*only, ","), *asJSON, *rounds, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, only []string, asJSON bool, rounds, jobs int) (err error) {
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
	b := &lab{url: url}
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	if !asJSON {
		fmt.Printf("PostgreSQL %s, %d CPUs shared by client and server, %s, default options unless said\n\n", version, runtime.NumCPU(), runtime.Version())
	}
	for _, name := range only {
		var l line
		switch name {
		case "takeover":
			l, err = b.takeover(ctx, rounds, !asJSON)
		case "handoff":
			l, err = b.handoff(ctx, 300)
		case "drain":
			l, err = b.drain(ctx, jobs)
		case "chains":
			l, err = b.chains(ctx, 2000)
		default:
			err = fmt.Errorf("unknown workload %q", name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.Name = name
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
