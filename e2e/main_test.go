// Package e2e tests the program as its users run it: its commands and its HTTP API as processes here, and its dashboard in a browser with the
// scripts in this folder (see run).
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/cmd/app"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/cli/program"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
)

// beTrapeze is the environment variable that makes this test binary act as the program under test, so that tests can run a real process.
const beTrapeze = "BE_TRAPEZE"

func TestMain(m *testing.M) {
	if os.Getenv(beTrapeze) != "" {
		os.Exit(app.Run(context.Background(), program.Command(""), os.Args[1:]))
	}
	pgtest.Main(m)
}

// environment returns this process's environment without Trapeze's variables, plus the variables in more. By default, each job has a single
// attempt, so that an error fails the job immediately.
func environment(more ...string) []string {
	kept := []string{beTrapeze + "=1", "TRAPEZE_MAX_ATTEMPTS=1"}
	for _, one := range os.Environ() {
		if !strings.HasPrefix(one, "TRAPEZE_") && !strings.HasPrefix(one, "DATABASE_URL=") {
			kept = append(kept, one)
		}
	}
	return append(kept, more...)
}

// result is the output and exit code of a command.
type result struct {
	out, err string
	code     int
}

// trapeze runs one command and waits until it exits.
func trapeze(t *testing.T, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], args...)
	var out, errs bytes.Buffer
	c.Env, c.Stdout, c.Stderr = environment(env...), &out, &errs
	if err := c.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatalf("trapeze %v: %v", args, err)
		}
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode()}
}

// database is a database with methods that run commands on it.
type database struct {
	t   *testing.T
	url string
}

func (d database) run(args ...string) result {
	d.t.Helper()
	return trapeze(d.t, []string{"DATABASE_URL=" + d.url}, args...)
}

// ok runs a command that must succeed, and returns its output.
func (d database) ok(args ...string) string {
	d.t.Helper()
	s := d.run(args...)
	if s.code != 0 {
		d.t.Fatalf("trapeze %v: exit code %d: %s", args, s.code, s.err)
	}
	return s.out
}

// enqueue submits a job and returns its ID.
func (d database) enqueue(args ...string) string {
	d.t.Helper()
	return strings.TrimSpace(d.ok(append([]string{"enqueue"}, args...)...))
}

// job reads a job with `trapeze job`.
func (d database) job(id string) job.JobRow {
	d.t.Helper()
	return decoded[job.JobRow](d.t, d.ok("job", id, "--json"))
}

func decoded[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("no JSON: %v: %s", err, text)
	}
	return v
}

// pod is a running `trapeze serve`.
type pod struct {
	cli.ReadyLine
	line  string // the line as printed
	t     *testing.T
	cmd   *exec.Cmd
	log   *podtest.Log
	ended chan struct{} // closed when the process has exited
}

// serve starts a pod with the demo kinds and waits until the pod is ready. The pod is stopped when the test ends.
func serve(t *testing.T, url string, env []string, args ...string) *pod {
	t.Helper()
	env = append([]string{"TRAPEZE_HTTP_ADDR=127.0.0.1:0", "TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_POLL_INTERVAL=200ms"}, env...)
	if url != "" {
		env = append(env, "DATABASE_URL="+url)
	}
	p := &pod{t: t, cmd: exec.Command(os.Args[0], append([]string{"serve"}, args...)...), log: &podtest.Log{}, ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = environment(env...), p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Scan()
		first <- lines.Text()
		for lines.Scan() {
		}
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // has no effect if the process has already exited
		<-p.ended
		if t.Failed() {
			t.Logf("the log of the pod %s, which ended with %s:\n%s", p.HTTP, p.cmd.ProcessState, p.log)
		}
	})
	select {
	case line := <-first:
		p.line = line
		if json.Unmarshal([]byte(line), &p.ReadyLine) != nil {
			<-p.ended
			t.Fatalf("serve printed %q; its log:\n%s", line, p.log)
		}
	case <-time.After(time.Minute):
		t.Fatal("serve was not ready within a minute")
	}
	return p
}

func (p *pod) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end waits until the pod exits and returns its exit code.
func (p *pod) end() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		p.t.Fatal("serve did not end within 30 s of the signal")
		return -1
	}
}

// status requests a path from the pod and returns the status, or 0 if there is no response.
func (p *pod) status(path string) int {
	response, err := http.Get(p.HTTP + path)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}
