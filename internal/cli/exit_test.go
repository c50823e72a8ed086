package cli_test

import (
	"fmt"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/schema"
)

func TestUnfitSchemaExitCode(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, err := range []error{schema.ErrNoTables, schema.ErrNoData, schema.ErrRowSecurity, schema.ErrTooOld, schema.ErrTooNew} {
		is.Equal(cli.Code(fmt.Errorf("start the runner: %w", err)), cli.CodeUsage)
	}
}
