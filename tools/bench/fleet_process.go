package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/metrics"
)

// hostConnections is the size of a fleet pod's host pool.
const hostConnections = 4

// query is a job that uses a connection from the host's pool for a while.
type query struct{}

func (query) Kind() string { return "bench.query" }

// fleetPodProcess runs a pod with default options and a host pool of four connections until SIGTERM. It replies to each line on stdin: to
// "delays" with how long after its due time, in milliseconds, each arrival run since the previous "delays" started, and to "heard" with the
// number of notifications received.
func fleetPodProcess() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.MaxConns = hostConnections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{PodName: os.Getenv("TRAPEZE_POD_NAME"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer r.Close()
	var seen waits
	runner.Handle(r, seen.handle)
	runner.Handle(r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	runner.Handle(r, func(ctx context.Context, _ *runner.Job[query]) (*runner.Outcome, error) {
		_, err := pool.Exec(ctx, `select pg_sleep(0.2)`)
		return nil, err
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Collector(r))
	go func() {
		for lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout); lines.Scan(); {
			if lines.Text() == "delays" {
				_ = out.Encode(seen.all())
				continue
			}
			heard := 0.0
			families, _ := registry.Gather()
			for _, f := range families {
				if f.GetName() == "trapeze_notifications_total" {
					heard = f.GetMetric()[0].GetCounter().GetValue()
				}
			}
			_ = out.Encode(heard)
		}
	}()
	return r.Run(ctx)
}

// crew is a fleet of pods that share a database, each in a separate process.
type crew []*crewPod

type crewPod struct {
	cmd  *exec.Cmd
	asks io.WriteCloser
	says *json.Decoder
}

// startCrew starts n pods.
func startCrew(ctx context.Context, url string, n int) (c crew, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for i := range n {
		cmd := exec.CommandContext(ctx, self, "fleet-pod")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url, fmt.Sprintf("TRAPEZE_POD_NAME=pod-%02d", i))
		cmd.Stderr = os.Stderr
		asks, failed := cmd.StdinPipe()
		out, err := cmd.StdoutPipe()
		if err = errors.Join(failed, err); err == nil {
			err = cmd.Start()
		}
		if err != nil {
			c.kill()
			return nil, err
		}
		c = append(c, &crewPod{cmd, asks, json.NewDecoder(out)})
	}
	return c, nil
}

// cpu returns the CPU time that the processes have used.
func (c crew) cpu() (used time.Duration) {
	for _, p := range c {
		if one, ok := readProcess(fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)); ok {
			used += one.threads
		}
	}
	return used
}

// delays returns, in sorted order, the start delays of the arrivals that the pods have run since the previous call.
func (c crew) delays() (all []float64, err error) {
	for _, p := range c {
		var list []float64
		_, err := fmt.Fprintln(p.asks, "delays")
		if err = errors.Join(err, p.says.Decode(&list)); err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.Sort(all)
	return all, nil
}

// heard returns the number of notifications that the pods have received.
func (c crew) heard() (total float64, err error) {
	for _, p := range c {
		var one float64
		_, err := fmt.Fprintln(p.asks, "heard")
		if err = errors.Join(err, p.says.Decode(&one)); err != nil {
			return 0, err
		}
		total += one
	}
	return total, nil
}

// kill sends SIGKILL to the processes.
func (c crew) kill() {
	for _, p := range c {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}
}
