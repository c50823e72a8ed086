package demo

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/runner"
)

// podSettings is sent to a pod as the first line of its stdin, because other users could see the password on the command line.
type podSettings struct {
	Name, Version, DatabaseURL, DirectURL, Schema, CO2 string

	BatchRows  int
	BatchPause time.Duration
}

// newDemoPodCommand returns the command for the pods that the demo starts as separate processes, one of which it kills. A pod runs only
// while its stdin is open, so it never outlives the demo.
func newDemoPodCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "pod",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			in := bufio.NewReader(c.InOrStdin())
			line, err := in.ReadBytes('\n')
			if err != nil {
				return cli.Usage("only the demo command starts a demo pod: want its settings as the first line on stdin")
			}
			var p podSettings
			if err := json.Unmarshal(line, &p); err != nil {
				return cli.Usage("settings of a demo pod: %w", err)
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM)
			defer stop()
			go func() {
				_, _ = io.Copy(io.Discard, in)
				stop()
				time.Sleep(leaveWithin)
				os.Exit(cli.CodeUnavailable) // the database is gone too, so there is nothing to wait for
			}()
			return p.run(ctx)
		},
	}
}

// run runs jobs until ctx is done.
func (p podSettings) run(ctx context.Context) error {
	c, err := cli.Load() // the environment is the same as the demo's
	if err != nil {
		return err
	}
	c.DatabaseURL, c.Options.DirectURL, c.Options.Schema = p.DatabaseURL, p.DirectURL, p.Schema
	pool, err := c.Connect(ctx, false)
	if err != nil {
		return err
	}
	defer pool.Close()
	c.Options.Version = p.Version
	s := stage{config: c, log: demoLogger(c)}
	r, err := runner.New(pool, s.runnerOptions(p.Name))
	if err != nil {
		return err
	}
	defer r.Close()
	err = handlers.Register(r, pool, handlers.Options{Schema: p.CO2, BatchRows: p.BatchRows, BatchPause: p.BatchPause})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, r.HandBackNow)
	return r.Run(ctx)
}

// leaveWithin limits how long a pod may take to shut down before it is killed.
const leaveWithin = 5 * time.Second

// podProcess is a pod in a separate process.
type podProcess struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed once the process has exited and been waited for
}

func startPodProcess(p podSettings) (*podProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start %s: %w", p.Name, err)
	}
	one := &podProcess{name: p.Name, cmd: exec.Command(self, "demo", "pod"), ended: make(chan struct{})}
	one.cmd.Stderr = os.Stderr
	if one.stdin, err = one.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := one.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	go func() {
		_ = one.cmd.Wait() // the demo does not need the exit status
		close(one.ended)
	}()
	if err := json.NewEncoder(one.stdin).Encode(p); err != nil {
		one.kill()
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return one, nil
}

// kill kills the process with SIGKILL, so that it cannot clean up.
func (p *podProcess) kill() {
	_ = p.cmd.Process.Kill() // fails only if the process has already exited
	<-p.ended
}

// leave lets the pod drain, and kills it if that takes too long.
func (p *podProcess) leave() {
	_ = p.stdin.Close() // fails only if the process has already exited
	timer := time.NewTimer(leaveWithin)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.kill()
	}
}

// alive reports whether the process is still running.
func (p *podProcess) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}
