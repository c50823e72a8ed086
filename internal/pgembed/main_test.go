package pgembed

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

// TestMain runs the tests or, in a process that a test has started in order to kill it, acts as a server's owner.
func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv("PGEMBED_OWN"); ok {
		own(dir)
		return
	}
	if err := UseMemoryForTemporaryFiles(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if seed.server != nil {
		_ = os.RemoveAll(filepath.Dir(seed.server.Dir()))
	}
	os.Exit(code)
}

// seed is the home of a stopped server, which most tests copy because initdb is slow. TestADataDirectoryIsKept runs initdb itself.
var seed struct {
	once   sync.Once
	server *Server
}

func seedHome(t *testing.T) string {
	t.Helper()
	is := is.New(t)
	seed.once.Do(func() {
		dir, err := os.MkdirTemp(Options{}.temporaryDir(account{other: true}), "pgembed-seed-")
		is.NoErr(err)
		is.NoErr(os.Chmod(dir, 0o711))
		server, err := Start(t.Context(), Options{DataDir: filepath.Join(dir, "home")})
		is.NoErr(err)
		seed.server = server
		is.NoErr(server.Stop())
	})
	return seed.server.Dir()
}

// own starts a server, prints its PID, home and URL on one line, and keeps it running until stdin is closed.
func own(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	s, err := Start(context.Background(), Options{
		DataDir:  dir,
		TempDir:  os.Getenv("PGEMBED_TEMP"),
		Seed:     os.Getenv("PGEMBED_SEED"),
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
		outlives: os.Getenv("PGEMBED_OUTLIVES") != "",
	})
	fail(err)
	fmt.Println(s.PID(), s.Dir(), s.URL())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	fail(s.Stop())
}

// owner represents another process that owns a server.
type owner struct {
	cmd   *exec.Cmd
	stdin io.Closer
	pid   int    // PID of the server
	dir   string // home of the server
	url   string
}

// startOwner runs own in another process, which the test must stop.
func startOwner(t *testing.T, prepare func(*exec.Cmd)) owner {
	t.Helper()
	is := is.New(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PGEMBED_SEED="+seedHome(t))
	cmd.Stderr = t.Output()
	prepare(cmd)
	stdin, err := cmd.StdinPipe()
	is.NoErr(err)
	stdout, err := cmd.StdoutPipe()
	is.NoErr(err)
	is.NoErr(cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	is.NoErr(err) // the owner printed a line
	o := owner{cmd: cmd, stdin: stdin}
	_, err = fmt.Sscan(line, &o.pid, &o.dir, &o.url)
	if err != nil {
		t.Fatalf("the owner said: %s", line)
	}
	return o
}

// kill kills the owner with SIGKILL.
func (o owner) kill(t *testing.T) {
	t.Helper()
	is := is.New(t)
	is.NoErr(o.cmd.Process.Kill())
	_ = o.cmd.Wait()
}

// openDir creates a directory that a server can access, regardless of its user. If the tests run as root, other users cannot access the
// directories that t.TempDir creates.
func openDir(t *testing.T) string {
	t.Helper()
	is := is.New(t)
	dir, err := os.MkdirTemp(Options{}.temporaryDir(account{other: true}), "pgembed-test-")
	is.NoErr(err)
	t.Cleanup(func() { is.NoErr(os.RemoveAll(dir)) })
	is.NoErr(os.Chmod(dir, 0o755))
	return filepath.Join(dir, "home")
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	is := is.New(t)
	o.Logger, o.Seed = slog.New(slog.NewTextHandler(t.Output(), nil)), seedHome(t)
	s, err := Start(t.Context(), o)
	is.NoErr(err)
	t.Cleanup(func() { is.NoErr(s.Stop()) })
	return s
}

// ask runs a query on a new connection and returns its single value as text.
func ask(t *testing.T, url, sql string) string {
	t.Helper()
	is := is.New(t)
	conn, err := pgx.Connect(t.Context(), url)
	is.NoErr(err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var answer string
	err = conn.QueryRow(t.Context(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&answer)
	if err != nil && strings.HasPrefix(sql, "SELECT") {
		is.NoErr(err)
	}
	return answer
}

func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timed out waiting:", what)
		}
	}
}
