package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// heldCall is a call of a handler that holds the only connection of the host's pool, and the text of the error that it returns.
type heldCall struct {
	name string
	call func(ctx context.Context, r *runner.Runner, j *raw, tx pgx.Tx) error
	want string
}

const isOpen = "a transaction is open"

var heldCalls = []heldCall{
	{"Job.Tx", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error {
		return j.Tx(ctx, func(pgx.Tx) error { return nil }, nil)
	}, isOpen},
	{"Job.Write", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("select 1")
		return j.Write(ctx, nil, b)
	}, isOpen},
	{"Runner.Tx", func(ctx context.Context, r *runner.Runner, _ *raw, _ pgx.Tx) error {
		return r.Tx(ctx, func(pgx.Tx) error { return nil })
	}, isOpen},
	{"Checkpoint", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error { return j.Checkpoint(ctx, 1) }, isOpen},
	{"more events than the buffer holds", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error {
		for range 5_000 {
			if err := j.Emit(ctx, "e", "", "", nil); err != nil {
				return err
			}
		}
		return nil
	}, ""},
	{"Progress", func(_ context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error { j.Progress(1, 2); return nil }, ""},
	{"Token", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error {
		_, err := j.Token(ctx)
		return err
	}, ""},
	{"PreviousResult", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error {
		var v any
		return j.PreviousResult(ctx, &v)
	}, "not found"},
	{"Failure", func(ctx context.Context, _ *runner.Runner, j *raw, _ pgx.Tx) error {
		_, err := j.Failure(ctx)
		return err
	}, "not found"},
	{"Enqueue", func(ctx context.Context, r *runner.Runner, _ *raw, _ pgx.Tx) error {
		_, err := r.Enqueue(ctx, rawArgs("other"), runner.AllowUnregistered(), runner.Unique("u", runner.WhileActive))
		return err
	}, ""},
	{"EnqueueTx", func(ctx context.Context, r *runner.Runner, _ *raw, tx pgx.Tx) error {
		_, err := r.EnqueueTx(ctx, tx, rawArgs("other"), runner.AllowUnregistered())
		return err
	}, ""},
	{"EnqueueMany", func(ctx context.Context, r *runner.Runner, _ *raw, _ pgx.Tx) error {
		_, err := r.EnqueueMany(ctx, many("other", 3), runner.AllowUnregistered())
		return err
	}, ""},
	{"Runner.GetJob", func(ctx context.Context, r *runner.Runner, j *raw, _ pgx.Tx) error {
		_, err := r.GetJob(ctx, j.ID())
		return err
	}, ""},
	{"Complete", func(ctx context.Context, r *runner.Runner, j *raw, _ pgx.Tx) error {
		return r.Complete(ctx, j.ID(), "wrong", nil)
	}, "wrong token"},
	{"Maintain", func(ctx context.Context, r *runner.Runner, _ *raw, _ pgx.Tx) error { return r.Maintain(ctx) }, ""},
	{"SetLane", func(ctx context.Context, r *runner.Runner, _ *raw, _ pgx.Tx) error {
		_, err := r.Admin("a").SetLane(ctx, "default", job.LaneChange{})
		return err
	}, ""},
	{"Status", func(ctx context.Context, r *runner.Runner, _ *raw, _ pgx.Tx) error {
		_, err := r.Admin("").Status(ctx)
		return err
	}, ""},
}

// A handler whose transaction holds the only connection of the host's pool waits for none of its calls. Each succeeds, or returns an error
// at once.
func TestCallsInsideOwnTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	is.NoErr(err)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(pool.Close)
	var r *runner.Runner
	check := func(ctx context.Context, where string, j *raw, tx pgx.Tx, calls []heldCall) error {
		for _, c := range calls {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			err := c.call(ctx, r, j, tx)
			cancel()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s in %s: %v, want %q", c.name, where, err, c.want)
			}
		}
		return nil
	}
	ready := make(chan struct{})
	r = start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-ready
		return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error { return check(ctx, "InTx", j, tx, heldCalls) }), errors.Join(
			j.Tx(ctx, func(tx pgx.Tx) error { return check(ctx, "Job.Tx", j, tx, heldCalls) }, nil),
			r.Tx(ctx, func(tx pgx.Tx) error { return check(ctx, "Runner.Tx", j, tx, heldCalls[:3]) }),
		)
	}})
	close(ready)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
}
