package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

const cockroach = "CockroachDB CCL v25.2.22 (x86_64-pc-linux-gnu, built 2026/07/28 18:01:24, go1.23.12)"

func TestCommandsOnUnsupportedServer(t *testing.T) {
	t.Parallel()
	db := database{t, pgtest.Imitation(t, cockroach)}
	for _, command := range []string{"serve", "migrate up", "migrate status", "jobs", "doctor"} {
		is := is.New(t)
		refused := db.run(strings.Fields(command)...)
		is.Equal(refused.code, cli.CodeUsage)
		is.True(strings.Contains(refused.err, "CockroachDB cannot run Trapeze, because it has no LISTEN"))
		is.Equal(strings.Count(strings.TrimSpace(refused.err), "\n"), 0) // one sentence
	}
}

// A program that embeds Trapeze fails immediately instead of waiting for the server as it would for a standby.
func TestRunnerOnUnsupportedServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.Imitation(t, cockroach))
	err := migrate.Up(t.Context(), pool, runner.Options{})
	is.True(err != nil && strings.Contains(err.Error(), "CockroachDB cannot run Trapeze"))
	r, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer r.Close()
	err = r.Run(t.Context())
	is.True(err != nil && strings.Contains(err.Error(), "CockroachDB cannot run Trapeze"))
}
