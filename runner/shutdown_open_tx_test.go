package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A hand-back cannot pass a transaction that locks the job's row. The job is still running when Run returns, and another pod takes it over
// once the transaction has ended.
func TestOpenJobTransactionAfterRun(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	a := newRunner(t, pool, runner.Options{ShutdownGrace: 50 * time.Millisecond}, map[string]handler{
		"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(context.WithoutCancel(ctx), func(pgx.Tx) error { <-wait; return nil }, nil)
		}})
	stop, done := runInBackground(t, a)
	id := enqueueStarted(t, a, rawArgs("k"))
	pgtest.Wait(t, "the transaction is open", func() bool {
		return queryOne[bool](t, pool, `select exists (select from pg_stat_activity where state = 'idle in transaction' and datname = current_database())`)
	})
	stop()
	is.NoErr(<-done) // Run does not wait for the handler
	is.Equal(queryOne[string](t, pool, `select state::text from trapeze.live where id = $1`, id), "running")
	open()
	b := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	is.Equal(waitEnded(t, b, id).State, job.Succeeded)
	checkHistory(t, pool, b)
}
