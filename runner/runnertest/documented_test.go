package runnertest_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

type Charge struct{ Order int }

func (Charge) Kind() string { return "charge" }

type Remind struct{ Order int }

func (Remind) Kind() string { return "remind" }

// register registers the handlers of a shop, as its main function would.
func register(r *runner.Runner) {
	runner.Handle(r, func(_ context.Context, j *runner.Job[Charge]) (*runner.Outcome, error) {
		order := j.Args.Order
		return runner.Then(Remind{order}, runner.Delay(24*time.Hour)).InTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into charges values ($1)`, order)
			return err
		}), nil
	})
	runner.Handle(r, func(context.Context, *runner.Job[Remind]) (*runner.Outcome, error) { return nil, nil })
}

func connect(t *testing.T) *pgxpool.Pool {
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	if _, err := pool.Exec(t.Context(), `create table charges ("order" int)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

// docs:begin
func TestAnOrderIsChargedOnceWhateverDies(t *testing.T) {
	pool := connect(t) // any pool on a PostgreSQL for tests
	h := runnertest.New(t, pool, runner.Options{}, register)

	id := h.Enqueue(Charge{Order: 7})
	h.DieAt(runnertest.InFlush, "charge") // the pod dies while the commit is on its way
	h.RunUntilIdle()                      // another one takes over

	h.RequireState(id, runner.StateSucceeded)
	var charged int
	if err := pool.QueryRow(t.Context(), `select count(*) from charges where "order" = 7`).Scan(&charged); err != nil || charged != 1 {
		t.Errorf("charged %d times: %v", charged, err)
	}

	remind := h.RequireEnqueued(Remind{Order: 7})
	h.RequireState(remind.ID, runner.StatePending)
	h.Advance(24 * time.Hour)
	h.RunUntilIdle()
	h.RequireState(remind.ID, runner.StateSucceeded)
}

// docs:end

func TestTheDocumentationShowsATestThatPasses(t *testing.T) {
	is := is.New(t)
	source, err := os.ReadFile("documented_test.go")
	is.NoErr(err)
	page, err := os.ReadFile("../../docs/testing-your-jobs.md")
	is.NoErr(err)
	_, body, ok := strings.Cut(string(source), "// docs:begin\n")
	is.True(ok) // the source marks where the page's part begins
	body, _, ok = strings.Cut(body, "\n// docs:end\n")
	is.True(ok)                                   // and where it ends
	is.True(strings.Contains(string(page), body)) // the page shows it as it is
}
