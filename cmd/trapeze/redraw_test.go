package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/matryer/is"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestWhatIsWatchedIsShownAgainUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	ctx, stop := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	c := &cobra.Command{}
	c.SetContext(ctx)
	c.SetOut(&out)
	c.SetErr(&errs)
	shown := 0
	is.NoErr(watching(c, leastWatch, func(context.Context) error {
		switch shown++; shown {
		case 2:
			return unavailable("the database does not answer")
		case 4:
			stop()
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), shown)
		return err
	}))
	is.Equal(out.String(), "1\n\n3\n") // one after the other; what was being drawn at the end is not
	is.Equal(strings.TrimSpace(errs.String()), "trapeze: the database does not answer")
	is.Equal(watching(c, leastWatch-1, nil) != nil, true) // too often
	c.SetContext(t.Context())
	broken := errors.New("no right to look")
	is.True(errors.Is(watching(c, leastWatch, func(context.Context) error { return broken }), broken)) // waiting does not mend that
}

func TestAPictureFitsTheScreen(t *testing.T) {
	is := is.New(t)
	is.Equal(fit("a\nb\n", 24), "\x1b[Ha\x1b[K\nb\x1b[K\x1b[J")
	is.Equal(fit("a\nb\nc\nd\n", 3), "\x1b[Ha\x1b[K\nb\x1b[K\n… 2 more lines\x1b[K\x1b[J")
}

// On a terminal: script gives the program one, and what it draws is in a file.
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
	is.True(strings.Contains(drawn(), "\x1b[?1049h")) // on the other screen
	is.True(strings.Contains(drawn(), "\x1b[2mLANE")) // in colour
	_ = command.Wait()
}

// testBinary is this program, which is the program under test in an environment that says so.
func testBinary() string { return os.Args[0] }

func readIf(file string) string {
	text, _ := os.ReadFile(file)
	return string(text)
}
