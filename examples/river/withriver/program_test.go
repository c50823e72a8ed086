package withriver

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertest"

	world "github.com/trapeze-run/trapeze/examples/river"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func begin(t *testing.T) (*river.Client[pgx.Tx], pgx.Tx) {
	t.Helper()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	is.NoErr(Migrate(t.Context(), pool))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	is.NoErr(err)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	return client, tx
}

func TestParcelInTransitSnooze(t *testing.T) {
	is := is.New(t)
	_, tx := begin(t)
	worker := rivertest.NewWorker(t, riverpgxv5.New(nil), &river.Config{}, &trackWorker{w: &world.World{}})
	result, err := worker.Work(t.Context(), t, tx, Track{Parcel: "1"}, nil)
	is.NoErr(err)
	is.Equal(result.EventKind, river.EventKindJobSnoozed)
}

func TestWelcomeInsertedInTransaction(t *testing.T) {
	is := is.New(t)
	client, tx := begin(t)
	p := &Program{client: client}
	is.NoErr(p.SignUp(t.Context(), tx, "ada"))
	rivertest.RequireInsertedTx[*riverpgxv5.Driver](t.Context(), t, tx, Welcome{}, nil)
}
