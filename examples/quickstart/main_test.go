package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv("QUICKSTART") != "" { // run the example program in this process
		main()
		return
	}
	pgtest.Main(m)
}

func TestReadmeProgramOnEmptyDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	readme, err := os.ReadFile("../../README.md")
	is.NoErr(err)
	source, err := os.ReadFile("main.go")
	is.NoErr(err)
	_, program, _ := strings.Cut(string(source), "\n") // without the comment in the first line
	is.True(strings.Contains(string(readme), "```go\n"+program+"```"))

	self, err := os.Executable()
	is.NoErr(err)
	command := exec.CommandContext(t.Context(), self) // #nosec G204 -- this program
	command.Env = append(os.Environ(), "QUICKSTART=1", "DATABASE_URL="+pgtest.EmptyURL(t))
	out, err := command.Output()
	is.NoErr(err)
	is.Equal(string(out), "length: 7\n")
}
