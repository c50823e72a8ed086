package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/sdk/client"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

// roleEnv is the environment variable that holds a role as JSON. If it is set, the test binary runs as a pod or as a Temporal server.
const roleEnv = "TRAPEZE_TEMPORAL_FAULTS"

// role configures a process. The process is a pod if Pod is set, and a server otherwise.
type role struct {
	Pod      string // the pod's name
	URL      string // the database's URL
	Temporal string // the server's address
	Prefix   string // see temporal.Options
	Server   Options
}

func TestMain(m *testing.M) {
	text := os.Getenv(roleEnv)
	if text == "" {
		pgtest.Main(m)
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run acts in the role until SIGTERM arrives or stdin closes because the test process has ended.
func (r role) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	if r.Pod != "" {
		return r.pod(ctx)
	}
	s, err := Start(ctx, r.Server)
	if err != nil {
		return err
	}
	fmt.Println(ready)
	<-ctx.Done()
	return s.Stop()
}

// ready is the line that a server prints once it responds.
const ready = "the server responds"

// pod is the main function of a host service.
func (r role) pod(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(r.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 6
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	run, err := runner.New(pool, runner.Options{PodName: r.Pod, Slots: 8, LeaseDuration: 1500 * time.Millisecond, HeartbeatInterval: 400 * time.Millisecond,
		PollInterval: 500 * time.Millisecond, ShutdownGrace: time.Second, MaxAttempts: 1, MaxCrashes: maxCrashes, Logger: log})
	if err != nil {
		return err
	}
	defer run.Close()
	register(run, pool)
	if err := handlers.Register(run, pool, flights); err != nil {
		return err
	}
	if r.Temporal != "" {
		c, err := client.NewLazyClient(client.Options{HostPort: r.Temporal, Namespace: "default", Logger: Quiet{}})
		if err != nil {
			return err
		}
		defer c.Close()
		err = temporal.Open(run, temporal.Options{Client: c, Prefix: r.Prefix, HeartbeatTimeout: 2 * time.Second, PollInterval: 200 * time.Millisecond,
			ReconcileEvery: time.Second})
		if err != nil {
			return err
		}
	}
	return run.Run(ctx)
}

// maxCrashes is higher than the number of faults in any test.
const maxCrashes = 20
