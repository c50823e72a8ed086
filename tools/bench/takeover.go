package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// sleeper is a job that runs until its context is cancelled.
type sleeper struct{}

func (sleeper) Kind() string { return "bench.sleep" }

const takeoverJobs = 50

// podProcess runs a pod in this process, with default options except for the number of slots and the shutdown grace period.
func podProcess() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{PodName: os.Getenv("TRAPEZE_POD_NAME"), Slots: 64, Logger: slog.New(slog.DiscardHandler), ShutdownGrace: time.Millisecond})
	if err != nil {
		return err
	}
	defer r.Close()
	runner.Handle(r, func(ctx context.Context, _ *runner.Job[sleeper]) (*runner.Outcome, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	return r.Run(ctx)
}

// takeover sends SIGKILL to a pod with 50 running jobs and measures how long each job takes to start on another pod.
func (b *lab) takeover(ctx context.Context) (l line, err error) {
	rounds := b.size(10)
	l = line{What: fmt.Sprintf("kill -9 of a pod with %d running jobs (64 slots, a shutdown grace of 1 ms, otherwise defaults: lease 8 s, heartbeat 2 s, poll 10 s), seconds until each job runs on another pod, %d rounds", takeoverJobs, rounds),
		Goal: "maximum ≤ 10 s"}
	var all []float64
	for round := range rounds {
		seconds, err := b.takeoverOnce(ctx)
		if err != nil {
			return l, err
		}
		slices.Sort(seconds)
		if !b.quiet {
			fmt.Fprintf(os.Stderr, "takeover round %d: %.2f to %.2f s\n", round+1, seconds[0], seconds[len(seconds)-1])
		}
		all = append(all, seconds...)
	}
	slices.Sort(all)
	l.set("seconds median", quantile(all, 0.5))
	l.set("seconds maximum", all[len(all)-1])
	return l, nil
}

func (b *lab) takeoverOnce(ctx context.Context) ([]float64, error) {
	g, err := b.rig(ctx, runner.Options{})
	if err != nil {
		return nil, err
	}
	defer g.close()
	a, err := startPod(ctx, g.url, "a")
	if err != nil {
		return nil, err
	}
	defer a.kill()
	list := make([]job.Args, takeoverJobs)
	for i := range list {
		list[i] = runner.Raw{Name: "bench.sleep"}
	}
	if _, err := g.r.EnqueueMany(ctx, list, runner.AllowUnregistered()); err != nil {
		return nil, err
	}
	const running = `select count(*) from trapeze.live l join trapeze.pods p on p.id = l.pod where p.name = $1 and l.fence = $2`
	if err := g.until(ctx, running, "a", 1); err != nil {
		return nil, err
	}
	second, err := startPod(ctx, g.url, "b")
	if err != nil {
		return nil, err
	}
	defer second.kill()
	// Kill the pod at a random time relative to the heartbeats of both pods.
	select {
	case <-time.After(5*time.Second + time.Duration(rand.IntN(2000))*time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	killed := time.Now()
	a.kill()
	if err := g.until(ctx, running, "b", 2); err != nil {
		return nil, err
	}
	rows, err := g.pool.Query(ctx, `select claimed_at from trapeze.live`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var seconds []float64
	for rows.Next() {
		var at time.Time
		if err := rows.Scan(&at); err != nil {
			return nil, err
		}
		seconds = append(seconds, at.Sub(killed).Seconds())
	}
	return seconds, rows.Err()
}

func (g *rig) until(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		var n int
		if err := g.pool.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
			return err
		}
		if n == takeoverJobs {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d jobs run: %w", n, takeoverJobs, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pod is a process that runs jobs.
type pod struct{ cmd *exec.Cmd }

func startPod(ctx context.Context, url, name string) (*pod, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "pod")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "TRAPEZE_POD_NAME="+name)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &pod{cmd}, nil
}

// kill sends SIGKILL to the process.
func (p *pod) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}
