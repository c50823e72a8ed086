package runnertest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// step is a job that inserts one row into the effects table when its outcome is committed. Its fields select the jobs that follow it.
type step struct {
	Name string
	Then string   `json:",omitempty"` // name of the next step
	Fan  []string `json:",omitempty"` // names of the branches that Then joins
}

func (s step) Kind() string { return "step" }

// first and last are steps of separate kinds, so that a test can make a pod die during one of them.
type (
	first struct{ step }
	last  struct{ step }
)

func (first) Kind() string { return "first" }
func (last) Kind() string  { return "last" }

// effects creates a database with the effects table.
func effects(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	if _, err := pool.Exec(t.Context(), `create table effects (name text)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

// count returns the number of rows that the step with the given name has inserted.
func count(t *testing.T, pool *pgxpool.Pool, name string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select count(*) from effects where name = $1`, name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func leave(name string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into effects values ($1)`, name)
		return err
	}
}

// do returns the outcome that s describes.
func do(s step) *runner.Outcome {
	o := runner.Done(s.Name)
	switch {
	case len(s.Fan) > 0:
		var children []runner.Args
		for _, name := range s.Fan {
			children = append(children, step{Name: name})
		}
		o = runner.FanOut(children...).Join(last{step{Name: s.Then}})
	case s.Then != "":
		o = runner.Then(last{step{Name: s.Then}})
	}
	return o.InTx(leave(s.Name))
}

// steps registers handlers for first, step and last. All of them except last save a checkpoint.
func steps(r *runner.Runner) {
	runner.Handle(r, func(ctx context.Context, j *runner.Job[first]) (*runner.Outcome, error) {
		return do(j.Args.step), j.Checkpoint(ctx, "half")
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		return do(j.Args), j.Tx(ctx, func(pgx.Tx) error { return nil }, "half")
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[last]) (*runner.Outcome, error) {
		return do(j.Args.step), nil
	})
}
