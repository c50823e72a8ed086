package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/cmd/app"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// beGreeter is the environment variable that makes this test binary act as the example.
const beGreeter = "BE_GREETER"

func TestMain(m *testing.M) {
	if os.Getenv(beGreeter) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// program is the example's executable file and the environment of its processes.
type program struct {
	t    *testing.T
	file string
	env  []string
}

// build compiles the example in the way that users compile their programs.
func build(t *testing.T) program {
	t.Helper()
	p := on(t, filepath.Join(t.TempDir(), "greeter"))
	if out, err := exec.Command("go", "build", "-o", p.file, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return p
}

// on returns the program in the given file, with an empty database.
func on(t *testing.T, file string) program {
	t.Helper()
	p := program{t: t, file: file, env: []string{"DATABASE_URL=" + pgtest.EmptyURL(t), "TRAPEZE_HTTP_ADDR=127.0.0.1:0"}}
	for _, one := range os.Environ() {
		if !strings.HasPrefix(one, "TRAPEZE_") && !strings.HasPrefix(one, "DATABASE_URL=") {
			p.env = append(p.env, one)
		}
	}
	return p
}

// run runs a command until it exits, and returns its output, its error output and its exit code.
func (p program) run(args ...string) (out, errs string, code int) {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.Command(p.file, args...)
	c.Env, c.Stdout, c.Stderr = p.env, &stdout, &stderr
	_ = c.Run() // the exit code shows whether the command failed
	return stdout.String(), stderr.String(), c.ProcessState.ExitCode()
}

// start starts a command that runs until the test ends, and returns the first line of its output, decoded from JSON.
func (p program) start(args ...string) (ready map[string]any) {
	p.t.Helper()
	is := is.New(p.t)
	var log bytes.Buffer
	c := exec.Command(p.file, args...)
	c.Env, c.Stderr = p.env, &log
	out, err := c.StdoutPipe()
	is.NoErr(err)
	is.NoErr(c.Start())
	p.t.Cleanup(func() {
		is.NoErr(c.Process.Signal(syscall.SIGTERM))
		if err := c.Wait(); err != nil { // the command drains and exits
			p.t.Errorf("%s: %v\n%s", args[0], err, log.String())
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	is.NoErr(err)
	is.NoErr(json.Unmarshal(line, &ready))
	return ready
}

func TestProgramCommandsAndHandlers(t *testing.T) {
	is := is.New(t)
	p := build(t)

	out, _, code := p.run("version")
	is.Equal(code, 0)
	is.True(strings.HasPrefix(out, "greeter ")) // the program shows its own name
	out, _, _ = p.run("enqueue", "--help")
	is.True(strings.Contains(out, "greeter enqueue"))
	is.True(!strings.Contains(out, "  trapeze "))
	_, errs, code := p.run("jobs")
	is.Equal(code, 2) // the tables do not exist yet
	is.True(strings.HasPrefix(errs, "greeter: "))
	_, _, code = p.run("migrate", "up")
	is.Equal(code, 0)

	ready := p.start("serve")
	out, _, code = p.run("enqueue", "greet", "--args", `{"name":"ada"}`, "--wait", "--json")
	is.Equal(code, 0)
	is.True(strings.Contains(out, `"hello ada"`)) // the program's handler ran
	_, errs, code = p.run("enqueue", "greet", "--server", ready["http"].(string))
	is.Equal(errs, "")
	is.Equal(code, 0)
	out, _, code = p.run("doctor", "--json")
	is.Equal(code, 0)
	is.True(strings.Contains(out, "schema"))
	_, errs, code = p.run("demo")
	is.Equal(code, 2) // only the trapeze command itself has demo
	is.True(strings.Contains(errs, "greeter --help"))
}

// A program can add middleware to both its pods and its workers.
func TestProgramOptionsWithoutVariables(t *testing.T) {
	seen := make(chan string, 10)
	o := app.Options{
		Register: func(_ context.Context, r *runner.Runner, _ *pgxpool.Pool) error {
			runner.Handle(r, greet)
			return nil
		},
		Configure: func(o *runner.Options) {
			o.Middleware = append(o.Middleware, func(ctx context.Context, j *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
				seen <- j.PodName()
				return next(ctx)
			})
		},
	}
	start := func(t *testing.T, args ...string) (ready map[string]any) {
		t.Helper()
		is := is.New(t)
		root := app.Command(o)
		out, in := io.Pipe()
		root.SetOut(in)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan int, 1)
		go func() { ended <- app.Run(ctx, root, args) }()
		t.Cleanup(func() {
			stop()
			is.Equal(<-ended, 0)
		})
		line, err := bufio.NewReader(out).ReadBytes('\n')
		is.NoErr(err)
		is.NoErr(json.Unmarshal(line, &ready))
		return ready
	}
	for _, where := range []string{"pod", "worker"} {
		t.Run(where, func(t *testing.T) {
			is := is.New(t)
			t.Setenv("DATABASE_URL", pgtest.EmptyURL(t))
			t.Setenv("TRAPEZE_HTTP_ADDR", "127.0.0.1:0")
			t.Setenv("TRAPEZE_LOG", "error")
			t.Setenv("TRAPEZE_POD_NAME", "pod")
			t.Setenv("TRAPEZE_RUNNER", strconv.FormatBool(where == "pod"))
			url := start(t, "serve")["http"].(string)
			if where == "worker" {
				t.Setenv("TRAPEZE_POD_NAME", "worker")
				start(t, "worker", "--server", url)
			}
			is.Equal(app.Run(t.Context(), app.Command(o), []string{"enqueue", "greet", "--server", url}), 0)
			is.Equal(<-seen, where) // the middleware was called in this process
		})
	}
}

// Every line of Go code in the guide must also occur in the examples.
func TestProgramGuideCode(t *testing.T) {
	is := is.New(t)
	known, shown := map[string]bool{}, 0
	for _, file := range []string{"main.go", "../mounting/main.go", "../mounting/main_test.go"} {
		source, err := os.ReadFile(file)
		is.NoErr(err)
		for line := range strings.Lines(string(source)) {
			known[strings.TrimSpace(line)] = true
		}
	}
	guide, err := os.ReadFile("../../docs/embedding.md")
	is.NoErr(err)
	inCode := false
	for line := range strings.Lines(string(guide)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			inCode = line == "```go"
			continue
		}
		if inCode {
			shown++
			if !known[line] {
				t.Errorf("no example has the line %q", line)
			}
		}
	}
	is.True(shown > 30) // the test found code in the guide
}

func TestProgramAsRemoteWorker(t *testing.T) {
	is := is.New(t)
	p := on(t, os.Args[0]) // the test binary acts as the program, because another build would take longer than the rest of the test
	p.env = append(p.env, beGreeter+"=1")
	pod := p
	pod.env = append(pod.env[:len(pod.env):len(pod.env)], "TRAPEZE_KINDS=greet", "TRAPEZE_RUNNER=false")
	ready := pod.start("serve") // this process runs no jobs
	worker := p
	worker.env = append([]string{"DATABASE_URL="}, p.env[1:]...)
	is.Equal(worker.start("worker", "--server", ready["http"].(string))["started"], true)
	out, _, code := p.run("enqueue", "greet", "--args", `{"name":"ada"}`, "--wait", "--json")
	is.Equal(code, 0)
	is.True(strings.Contains(out, `"hello ada"`))
}
