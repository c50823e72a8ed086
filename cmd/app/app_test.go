package app

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli/exit"
	"github.com/trapeze-run/trapeze/runner"
)

func TestAWorkerNeedsHandlersAndSaysWhatKeepsIt(t *testing.T) {
	is := is.New(t)
	arguments := []string{"worker", "--server", "http://127.0.0.1:1"}
	is.Equal(Run(t.Context(), Command(Options{}), arguments), exit.CodeUsage) // no handlers are registered
	refuses := func(_ context.Context, r *runner.Runner, pool *pgxpool.Pool) error {
		is.True(r != nil && pool == nil) // a worker has no database
		return errors.New("no licence")
	}
	is.Equal(Run(t.Context(), Command(Options{Register: refuses}), arguments), exit.CodeRefused)
}

// Cobra runs only the nearest PersistentPreRun of a command.
func TestAProgramsOwnCommandMayHaveAHook(t *testing.T) {
	is := is.New(t)
	root, hooked := Command(Options{}), 0
	root.AddCommand(&cobra.Command{
		Use: "greet", Args: cobra.NoArgs, PersistentPreRun: func(*cobra.Command, []string) { hooked++ },
		RunE: func(*cobra.Command, []string) error { return errors.New("nobody is there") },
	})
	is.Equal(Run(t.Context(), root, []string{"greet"}), exit.CodeRefused)
	is.Equal(hooked, 1)
	is.Equal(Run(t.Context(), root, []string{"greet", "whom"}), exit.CodeUsage)
	is.Equal(Run(t.Context(), root, []string{"cancel", "7", "--children"}), exit.CodeUsage) // the flag selects among many jobs
}

func TestTheVersionIsTheReleaseOfTheProgram(t *testing.T) {
	is := is.New(t)
	root := Command(Options{Name: "greeter", Release: "v1.2.3"})
	var out bytes.Buffer
	root.SetOut(&out)
	is.Equal(Run(t.Context(), root, []string{"version"}), exit.CodeOK)
	is.True(strings.HasPrefix(out.String(), "greeter v1.2.3 (schema version "))
}
