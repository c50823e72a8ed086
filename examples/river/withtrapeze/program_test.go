package withtrapeze

import (
	"testing"
	"time"

	"github.com/matryer/is"

	world "github.com/trapeze-run/trapeze/examples/river"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestParcelInTransitSnooze(t *testing.T) {
	is := is.New(t)
	run := runnertest.Call(t, handlers{&world.World{}}.track, Track{Parcel: "1"})
	is.NoErr(run.Err)
	is.Equal(run.Snooze.Wait, 10*time.Millisecond)
}

func TestWelcomeEnqueuedInTransaction(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	is.NoErr(Migrate(t.Context(), pool))
	r, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer r.Close()
	runner.Handle(r, handlers{}.welcome)
	p := &Program{r: r}
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	is.NoErr(p.SignUp(t.Context(), tx, "ada"))
	runnertest.RequireEnqueued(t, tx, "", Welcome{Email: "ada"})
}
