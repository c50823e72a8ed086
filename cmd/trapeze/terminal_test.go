package main

import (
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

func TestARoutesListIsWhatTheProgramServes(t *testing.T) {
	is := is.New(t)
	said := trapeze(t, nil, "routes", "--json")
	is.Equal(said.code, 0) // the command needs no database
	is.Equal(strings.Count(said.out, "\n"), len(api.Routes()))
	is.True(strings.Contains(said.out, `{"method":"POST","path":"/jobs","permission":"jobs:submit","summary":"Submit a job"}`))
}

// The program script provides a terminal, and writes the output to a file.
func TestPsDrawsInPlaceOnATerminal(t *testing.T) {
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
	is.True(strings.Contains(drawn(), "\x1b[2mLANE")) // uses colours
	_ = command.Wait()
}

// testBinary returns the path of this program, which acts as the program under test if its environment requests it.
func testBinary() string { return os.Args[0] }

func readIf(file string) string {
	text, _ := os.ReadFile(file)
	return string(text)
}
