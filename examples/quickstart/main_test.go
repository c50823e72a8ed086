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
	if os.Getenv("QUICKSTART") != "" { // run this process as the program
		main()
		return
	}
	pgtest.Main(m)
}

func TestTheReadmesProgramRunsAsItIsOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	readme, err := os.ReadFile("../../README.md")
	is.NoErr(err)
	source, err := os.ReadFile("main.go")
	is.NoErr(err)
	_, program, _ := strings.Cut(string(source), "\n") // without its first comment
	is.True(strings.Contains(string(readme), "```go\n"+program+"```"))

	self, err := os.Executable()
	is.NoErr(err)
	command := exec.CommandContext(t.Context(), self) // #nosec G204 -- this program
	command.Env = append(os.Environ(), "QUICKSTART=1", "DATABASE_URL="+pgtest.EmptyURL(t))
	out, err := command.Output()
	is.NoErr(err)
	is.Equal(string(out), "length: 7\n")
}
