//go:build long

package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestADatabaseThatIsGoneDoesNotKeepTheProcess(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	wait, _ := gate(t)
	o := named("a")
	o.ShutdownGrace = 50 * time.Millisecond
	r := make1(t, pool, o, map[string]does{
		"deaf":  func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"heeds": func(ctx context.Context, j *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, ctx.Err() },
		"ends":  func(ctx context.Context, j *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, nil },
		"fine":  nothing,
	})
	stop, done := goes(t, r)
	for _, kind := range []string{"deaf", "heeds", "ends"} {
		begun(t, r, of(kind))
	}
	proxy.Blackhole()
	stop()
	select {
	case err := <-done:
		is.NoErr(err)
	case <-time.After(15 * time.Second):
		t.Fatal("Run is still waiting for an unresponsive database")
	}
	b := start(t, direct, named("b"), map[string]does{"deaf": nothing, "heeds": nothing, "ends": nothing})
	quiet(t, direct) // recovery requeues the jobs that could not be handed back
	checkHistory(t, direct, b)
}
