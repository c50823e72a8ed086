package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

// podSettings configures a pod. It is sent as the first line of the pod's stdin.
type podSettings struct{ Name, DatabaseURL, CO2, Temporal, Namespace string }

// podCommand returns the command that runs a pod. The pod runs until its stdin is closed, so it never outlives the demo.
func podCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pod", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			in := bufio.NewReader(c.InOrStdin())
			var p podSettings
			line, err := in.ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, &p)
			}
			if err != nil {
				return fmt.Errorf("only the demo command starts a demo pod: want its settings as the first line on stdin: %w", err)
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM)
			defer stop()
			go func() { _, _ = io.Copy(io.Discard, in); stop() }()
			return p.run(ctx)
		},
	}
}

// run runs jobs until ctx is cancelled.
func (p podSettings) run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, p.DatabaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.DiscardHandler)
	r, err := runner.New(pool, runner.Options{PodName: p.Name, ShutdownGrace: time.Second, Logger: log})
	if err != nil {
		return err
	}
	defer r.Close()
	err = handlers.Register(r, pool, handlers.Options{Schema: p.CO2, Fenced: true, BatchRows: 1000, BatchPause: 150 * time.Millisecond})
	if err != nil {
		return err
	}
	c, err := client.NewLazyClient(client.Options{HostPort: p.Temporal, Namespace: p.Namespace, Logger: sdklog.NewStructuredLogger(log)})
	if err != nil {
		return err
	}
	defer c.Close()
	// The heartbeat timeout equals the duration of a pod's lease.
	if err := temporal.Open(r, temporal.Options{Client: c, Namespace: p.Namespace, HeartbeatTimeout: 8 * time.Second}); err != nil {
		return err
	}
	context.AfterFunc(ctx, r.StopNow)
	return r.Run(ctx)
}

// podProcess is a pod in a separate process.
type podProcess struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}
}

// start starts a pod, and waits until it has registered.
func (d *demo) start(ctx context.Context, name string) (*podProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &podProcess{name: name, cmd: exec.Command(self, "demo", "pod"), ended: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	settings := d.settings
	settings.Name = name
	err = json.NewEncoder(p.stdin).Encode(settings)
	if err == nil {
		err = d.wait(ctx, p, "select count(*) > 0 from trapeze.pods where name = $1 and closed_at is null", name)
	}
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// kill sends SIGKILL to the process, so that it cannot clean up.
func (p *podProcess) kill() {
	_ = p.cmd.Process.Kill() // fails only if the process has already exited
	<-p.ended
}

// leave lets the pod drain, and kills it if that takes too long.
func (p *podProcess) leave() {
	_ = p.stdin.Close() // fails only if the process has already exited
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

func (p *podProcess) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}
