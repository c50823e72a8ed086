package runner_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// submissionsInTx are the ways to submit in the caller's transaction, each with options that need something from the database.
var submissionsInTx = map[string]func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error{
	"one": func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error {
		_, err := r.EnqueueTx(ctx, tx, rawArgs("k"))
		return err
	},
	"of a foreign kind, with a submitter": func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error {
		_, err := r.EnqueueTx(ctx, tx, rawArgs("other"), runner.AllowUnregistered(), runner.Submitter("ann"), runner.NeedsApproval())
		return err
	},
	"a chain with lanes": func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error {
		_, err := r.EnqueueTx(ctx, tx, runner.Chain(rawArgs("k"), runner.With(rawArgs("k"), runner.Lane("guarded"))), runner.Lane("guarded"), runner.OnFailure(rawArgs("k")))
		return err
	},
	"duplicates": func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error {
		for _, option := range []runner.EnqueueOption{runner.Unique("u", runner.WhileActive), runner.IdempotencyKey("i")} {
			for range 2 {
				if _, err := r.EnqueueTx(ctx, tx, rawArgs("k"), option, runner.Delay(time.Hour)); err != nil {
					return err
				}
			}
		}
		return nil
	},
	"a few": func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error {
		_, err := r.EnqueueManyTx(ctx, tx, many("k", 3), runner.Lane("guarded"))
		return err
	},
	"many": func(ctx context.Context, r *runner.Runner, tx pgx.Tx) error {
		_, err := r.EnqueueManyTx(ctx, tx, many("k", 1_000))
		return err
	},
	"the function": func(ctx context.Context, _ *runner.Runner, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select * from trapeze.enqueue(kind => 'k', lane => 'guarded', idempotency_key => 'f', unique_key => 'f')`)
		return err
	},
}

// The caller's transaction holds the only connection to the server, so a submission that needed another one would wait for itself.
func TestTransactionSubmissionWithSingleConnection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	exec(t, pgtest.Connect(t, url), `insert into trapeze.lanes (name, requires_approval) values ('guarded', true)`)
	pool := viaPooler(t, pgtest.Pooler(t, url, 1))
	for name, submit := range submissionsInTx {
		r := newRunner(t, pool, runner.Options{DirectURL: "off"}, map[string]handler{"k": succeed})
		for _, state := range []string{"cold", "warm"} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return submit(ctx, r, tx) })
			cancel()
			if err != nil {
				t.Errorf("%s, %s: %v", name, state, err)
			}
		}
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{})
	is.NoErr(err)
	_, err = runner.EnqueueSQL(ctx, tx, rawArgs("k"), runner.IdempotencyKey("s"), runner.Lane("guarded"))
	is.NoErr(err)
	is.NoErr(tx.Commit())
}

// The handler's transaction holds the only connection, so neither the call nor a heartbeat gets one until the handler returns.
func TestJobCallInsideTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := viaPooler(t, pgtest.Pooler(t, pgtest.URL(t), 1))
	var r *runner.Runner
	held := func(call func(ctx context.Context, j *raw) error) handler {
		return func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(pgx.Tx) error { return call(ctx, j) }, nil)
		}
	}
	calls := map[string]handler{
		"read": held(func(ctx context.Context, j *raw) error { _, err := r.GetJob(ctx, j.ID()); return err }),
		"command": held(func(ctx context.Context, j *raw) error {
			_, err := r.Admin("ada").UndrainLane(ctx, job.DefaultLane)
			return err
		}),
		"enqueue": held(func(ctx context.Context, _ *raw) error { _, err := r.Enqueue(ctx, rawArgs("read")); return err }),
		"keyed": held(func(ctx context.Context, _ *raw) error {
			_, err := r.Enqueue(ctx, rawArgs("read"), runner.IdempotencyKey("i"))
			return err
		}),
		"token": held(func(ctx context.Context, j *raw) error { _, err := j.Token(ctx); return err }),
	}
	r = start(t, pool, runner.Options{DirectURL: "off", LeaseDuration: 3 * time.Second, HeartbeatInterval: time.Second, Slots: 1, MaxAttempts: 1}, calls)
	for kind := range calls {
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(*j.ErrorClass, job.ClassError) // an ordinary failed attempt, not a lost lease
		is.True(strings.Contains(*j.Error, "make this call outside the transaction"))
	}
}
