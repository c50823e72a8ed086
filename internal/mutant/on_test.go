//go:build mutants

package mutant

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestOneMutantIsChosenAtATime(t *testing.T) {
	is := is.New(t)
	t.Cleanup(func() { is.NoErr(Set("")) })
	for _, name := range Names() {
		is.NoErr(Set(name))
		for _, other := range Names() {
			is.Equal(Is(other), other == name) // the one that was chosen, and no other
		}
	}
}

func TestAnUnknownMutantIsRefusedWithTheList(t *testing.T) {
	is := is.New(t)
	err := Set("no_such")
	is.True(err != nil)
	is.True(strings.Contains(err.Error(), NoFence) && strings.Contains(err.Error(), LaunchBeforeCommit)) // the list

	again := exec.Command(os.Args[0], "-test.run=^$")
	again.Env = append(os.Environ(), "TRAPEZE_MUTANT=no_such")
	said, err := again.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	is.True(ok)
	is.Equal(exit.ExitCode(), 2) // a usage error, before anything else happens
	is.True(strings.Contains(string(said), "want one of "+NoFence))
}
