//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

func TestLeadersOfTwoSchemas(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	var pods []*runner.Runner
	for _, schema := range []string{"trapeze", "other_home"} {
		if err := migrate.Up(t.Context(), pool, runner.Options{Schema: schema}); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, start(t, pool, runner.Options{Schema: schema, PollInterval: 500 * time.Millisecond}, nil))
	}
	pgtest.Wait(t, "both pods lead", func() bool { return len(leading(t, pods...)) == 2 })
}
