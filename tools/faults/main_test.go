package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// podEnv is the environment variable that holds a podConfig as JSON. If it is set, the test binary runs as a pod instead of running tests.
const podEnv = "TRAPEZE_FAULT_POD"

// The pods use short intervals, so that other pods react quickly to a fault.
const (
	leaseDuration     = 1500 * time.Millisecond
	heartbeatInterval = 400 * time.Millisecond
	pollInterval      = 500 * time.Millisecond
	shutdownGrace     = time.Second
	maxCrashes        = 10
)

// podConfig configures a pod process.
type podConfig struct {
	Name  string
	URL   string
	Slots int
	Grace time.Duration
	// SubmitFor limits how long the pod itself submits chains, which start on insert while the pod has free slots. If it is zero, the pod
	// submits none.
	SubmitFor time.Duration
	// Defaults makes the pod use the default intervals.
	Defaults bool
}

func TestMain(m *testing.M) {
	config := os.Getenv(podEnv)
	if config == "" {
		pgtest.Main(m)
	}
	if err := runPod(config); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

// runPod plays the part of a host service's main function. It runs a runner until SIGTERM arrives. A second SIGTERM ends the grace period
// immediately.
func runPod(config string) error {
	var c podConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	// Stdin is closed when the test process ends, which makes the pod exit.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	host, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return err
	}
	host.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, host)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := newRunner(pool, c)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := handlers.Register(r, pool, example); err != nil {
		return err
	}
	go func() {
		<-signals
		stop()
		<-signals
		r.StopNow()
	}()
	if c.SubmitFor > 0 {
		go submitFromWithin(ctx, r, c)
	}
	return r.Run(ctx)
}

// newRunner returns a runner with handlers for all kinds that these tests use.
func newRunner(pool *pgxpool.Pool, c podConfig) (*runner.Runner, error) {
	o := runner.Options{
		PodName: c.Name, Slots: c.Slots, LeaseDuration: leaseDuration, HeartbeatInterval: heartbeatInterval, PollInterval: pollInterval,
		ShutdownGrace: c.Grace, MaxAttempts: 1, MaxCrashes: maxCrashes, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if c.Defaults {
		o.LeaseDuration, o.HeartbeatInterval, o.PollInterval = 0, 0, 0
	}
	r, err := runner.New(pool, o)
	if err != nil {
		return nil, err
	}
	register(r, pool)
	registerStress(r, pool)
	return r, nil
}

// These log messages report a pod's own submissions. The test reads them.
const (
	saysSubmitted = "pod: submitted "
	saysUnknown   = "pod: submission in doubt"
	saysDone      = "pod: submissions end"
)

// submitFromWithin submits chains from within a pod, which can start them on insert. It uses no idempotency keys, so it cannot resolve
// unknown outcomes.
func submitFromWithin(ctx context.Context, r *runner.Runner, c podConfig) {
	for ready := false; !ready && ctx.Err() == nil; ready, _ = r.Ready() {
		_ = pause(ctx, 1)
	}
	n := 0
	for end := time.Now().Add(c.SubmitFor); time.Now().Before(end) && ctx.Err() == nil; n++ {
		options := []runner.EnqueueOption{runner.Submitter(c.Name)}
		if n%3 == 0 {
			options = append(options, runner.Subject(fmt.Sprint("subject ", n%2)))
		}
		made, err := r.Enqueue(ctx, link{Of: chainLength}, options...)
		switch {
		case err == nil:
			fmt.Fprintf(os.Stderr, "%s%d\n", saysSubmitted, made.ID)
		case errors.Is(err, runner.ErrOutcomeUnknown):
			fmt.Fprintln(os.Stderr, saysUnknown, err)
		default:
			fmt.Fprintln(os.Stderr, "pod: submission refused:", err)
		}
		_ = pause(ctx, 40)
	}
	fmt.Fprintln(os.Stderr, saysDone)
}
