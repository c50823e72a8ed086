package runner_test

import (
	"bufio"
	"context"
	"io"
	"os"
	process "os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// signalledEnv holds the database's URL in the process that TestRunUntilSignal starts and signals.
const signalledEnv = "TRAPEZE_TEST_SIGNALLED"

func TestRunUntilSignal(t *testing.T) {
	if url := os.Getenv(signalledEnv); url != "" {
		runSignalled(t, url)
		return
	}
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"short": succeed, "long": succeed})
	short, long := enqueue(t, r, rawArgs("short")), enqueue(t, r, rawArgs("long"))
	c := process.Command(os.Args[0], "-test.run=^TestRunUntilSignal$")
	c.Env = append(os.Environ(), signalledEnv+"="+url)
	out, err := c.StdoutPipe()
	is.NoErr(err)
	is.NoErr(c.Start())
	defer func() { _ = c.Process.Kill() }()
	lines := bufio.NewScanner(out)
	next := func() string { lines.Scan(); return lines.Text() }
	is.Equal(next(), "both jobs run")
	is.NoErr(c.Process.Signal(syscall.SIGTERM))
	is.Equal(waitEnded(t, r, short).State, job.Succeeded) // the handler has time to finish
	is.Equal(get(t, r, long).State, job.Running)
	is.NoErr(c.Process.Signal(syscall.SIGTERM))
	is.Equal(next(), "the long handler returns")
	_, err = io.Copy(io.Discard, out)
	is.NoErr(err)
	is.NoErr(c.Wait())
	is.Equal(get(t, r, long).State, job.Pending) // handed back
}

// runSignalled runs two jobs in a process of its own: one ends soon after the first signal, the other only after the second.
func runSignalled(t *testing.T, url string) {
	is := is.New(t)
	r, err := runner.New(pgtest.Connect(t, url), runner.Options{ShutdownGrace: 10 * time.Minute})
	is.NoErr(err)
	defer r.Close()
	draining := func() bool { _, why := r.Ready(); return len(why) > 0 && why[0] == "draining" }
	runner.HandleRaw(r, "short", func(context.Context, *raw) (*runner.Outcome, error) {
		pgtest.Wait(t, "the pod drains", draining)
		return nil, nil
	})
	runner.HandleRaw(r, "long", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		pgtest.Wait(t, "both jobs run", func() bool { return r.Running() == 2 })
		_, _ = os.Stdout.WriteString("both jobs run\n")
		<-ctx.Done()
		_, _ = os.Stdout.WriteString("the long handler returns\n")
		return nil, context.Cause(ctx)
	})
	is.NoErr(r.RunUntilSignal(context.Background()))
}
