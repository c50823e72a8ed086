//go:build long

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestRoutesCommand(t *testing.T) {
	is := is.New(t)
	said := trapeze(t, nil, "routes", "--json")
	is.Equal(said.code, 0) // the command needs no database
	is.Equal(strings.Count(said.out, "\n"), len(api.Routes()))
	is.True(strings.Contains(said.out, `{"method":"POST","path":"/jobs","permission":"jobs:submit","summary":"Submit a job"}`))
}

// The script program runs the command in a terminal and writes its output to a file.
func TestPsCommandOnTerminal(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("no script(1) on this machine")
	}
	db := database{t, pgtest.URL(t)}
	file := filepath.Join(t.TempDir(), "typescript")
	command := exec.Command("script", "-qfc", testBinary()+" ps --watch=100ms", file)
	command.Env = environment("DATABASE_URL="+db.url, "TERM=xterm")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	is.NoErr(command.Start())
	drawn := func() string { return readIf(file) }
	pgtest.Wait(t, "it is drawn three times", func() bool { return strings.Count(drawn(), "\x1b[H") >= 3 })
	is.NoErr(syscall.Kill(-command.Process.Pid, syscall.SIGINT))
	is.True(strings.Contains(drawn(), "\x1b[?1049h")) // switches to the alternate screen
	is.True(strings.Contains(drawn(), "\x1b[2mLANE")) // uses color
	_ = command.Wait()
}

func TestBulkCancelTerminalConfirmation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("no script(1) on this machine")
	}
	db := database{t, pgtest.URL(t)}
	atTerminal := func(answer, args string) (string, int) {
		command := exec.Command("script", "-qec", testBinary()+" "+args, filepath.Join(t.TempDir(), "typescript"))
		command.Env, command.Stdin = environment("DATABASE_URL="+db.url, "TERM=xterm"), strings.NewReader(answer)
		out, err := command.Output()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		return string(out), command.ProcessState.ExitCode()
	}
	submit := func(n int) {
		t.Helper()
		_, err := pgtest.Connect(t, db.url).Exec(t.Context(), `select trapeze.enqueue('some.kind') from generate_series(1, $1)`, n)
		is.NoErr(err)
	}
	submit(100)
	text, code := atTerminal("", "cancel --kind some.kind")
	is.True(strings.Contains(text, "100 jobs cancelled")) // 100 jobs are too few to require confirmation
	is.Equal(code, 0)
	submit(101)
	for _, answer := range []string{"n\n", "\n", "\x04"} {
		text, code = atTerminal(answer, "cancel --kind some.kind")
		is.True(strings.Contains(text, "101 jobs would be cancelled; continue? [y/N]"))
		is.True(strings.Contains(text, "no job was cancelled"))
		is.Equal(code, 1)
	}
	text, code = atTerminal("", "cancel --kind some.kind --dry-run")
	is.True(strings.Contains(text, "101 jobs would be cancelled: "))
	is.Equal(code, 0)
	text, _ = atTerminal("y\n", "cancel --kind some.kind")
	is.True(strings.Contains(text, "101 jobs cancelled"))
	submit(101)
	text, _ = atTerminal("", "kill --kind some.kind --yes")
	is.True(!strings.Contains(text, "continue?"))
	is.True(strings.Contains(text, "101 jobs cancelled"))
	submit(101)
	is.Equal(db.ok("cancel", "--kind", "some.kind"), "101 jobs cancelled\n") // without a terminal, the command does not ask for confirmation
}

// testBinary returns this program's path. The program acts as the program under test if its environment says so.
func testBinary() string { return os.Args[0] }

func readIf(file string) string {
	text, _ := os.ReadFile(file)
	return string(text)
}
