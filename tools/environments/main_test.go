//go:build environments

package environments

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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

// podEnv is the environment variable that holds a podConfig as JSON. If it is set, the test binary runs as a pod instead of running tests.
const podEnv = "TRAPEZE_ENVIRONMENTS_POD"

// podConfig configures a pod process.
type podConfig struct {
	Name, URL, Direct, Schema string
	Pooled                    bool
}

// options returns the options of a pod with short intervals, so that the killed pod's jobs are soon recovered.
func (c podConfig) options(log io.Writer) runner.Options {
	return runner.Options{PodName: c.Name, Schema: c.Schema, DirectURL: c.Direct, BehindPooler: c.Pooled, Slots: 4, LeaseDuration: 3 * time.Second,
		HeartbeatInterval: 800 * time.Millisecond, PollInterval: 500 * time.Millisecond, ShutdownGrace: 5 * time.Second,
		Logger: slog.New(slog.NewTextHandler(log, nil))}
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

// runPod runs a runner until SIGTERM arrives or the test process ends, which closes stdin. Each line of stdin is how far to set the wall
// clock ahead.
func runPod(config string) error {
	var c podConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if ahead, err := time.ParseDuration(lines.Text()); err == nil {
				setWallClock(ahead)
			}
		}
		os.Exit(3)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, c.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := runner.New(pool, c.options(os.Stderr))
	if err != nil {
		return err
	}
	defer r.Close()
	register(r)
	r.DeclareSchedule("tick", "@every 1s", tick{})
	return r.Run(ctx)
}

// pod is a pod process.
type pod struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Writer
	log   podtest.Log
	ended chan struct{}
}

// startPod starts a pod process and waits until it has registered.
func startPod(t *testing.T, w *world, name string) *pod {
	t.Helper()
	p := launch(t, w, name)
	w.wait(name+" has registered or ended", func() bool {
		return !p.alive() || w.yes("select exists (select from trapeze.pods where name = $1 and closed_at is null)", name)
	})
	if !p.alive() {
		t.Fatalf("pod %s ended instead of running", name)
	}
	return p
}

// launch starts a pod process.
func launch(t *testing.T, w *world, name string) *pod {
	t.Helper()
	c := w.config
	c.Name = name
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{name: name, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	w.pods = append(w.pods, p)
	p.cmd.Env = append(os.Environ(), podEnv+"="+string(config))
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		if p.alive() {
			p.kill()
		}
		if t.Failed() {
			t.Logf("pod %s (%s):\n%s", name, p.cmd.ProcessState, p.log.String())
		}
	})
	return p
}

func (p *pod) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *pod) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop shuts the pod down as an orchestrator does, and checks that it ends well and has logged no error.
func (p *pod) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		t.Errorf("pod %s does not end", p.name)
		p.kill()
	}
	if !p.cmd.ProcessState.Success() {
		t.Errorf("pod %s ended with %s", p.name, p.cmd.ProcessState)
	}
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, "level=ERROR") {
			t.Errorf("pod %s logged: %s", p.name, line)
		}
	}
}
