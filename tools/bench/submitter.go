package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// task is the input that a submitter process reads from stdin.
type task struct {
	Pool   string   `json:"pool"`   // URL of the host's pool
	Direct string   `json:"direct"` // runner.Options.DirectURL
	Load   arrivals `json:"load"`
}

// submitterProcess is a program that submits jobs but never runs any. It first submits a no-op job to open the connections. It then submits
// the load and prints a sorted list of how late each submission was, in milliseconds.
func submitterProcess() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var t task
	if err := json.NewDecoder(os.Stdin).Decode(&t); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, t.Pool)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{DirectURL: t.Direct, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.Enqueue(ctx, noop{}, runner.AllowUnregistered()); err != nil {
		return err
	}
	late, err := t.Load.submit(ctx, r)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(late)
}

// submitElsewhere has another process submit the jobs of a task. Once the process has exited, submitElsewhere returns how late each
// submission was.
func submitElsewhere(ctx context.Context, t task) (late []float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "submitter")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), os.Stderr
	told, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("submitting process: %w", err)
	}
	return late, json.Unmarshal(told, &late)
}
