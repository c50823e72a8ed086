package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// pooled returns two host pools for a database. through connects via PgBouncer in transaction mode, with the one setting that this
// requires. direct bypasses PgBouncer.
func pooled(t *testing.T) (through, direct *pgxpool.Pool) {
	t.Helper()
	url := pgtest.URL(t)
	return viaPooler(t, pgtest.Pooler(t, url, 4)), pgtest.Connect(t, url)
}

func viaPooler(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // no statements are prepared, because the next backend would not have them
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Two pods share four backends, so any statement may run in a session that another pod has used.
func TestTakeoverBehindTransactionPooler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	through, direct := pooled(t)
	cable := pgtest.NewProxy(t, through.Config().ConnString())
	o := runner.Options{DirectURL: "off", PollInterval: 200 * time.Millisecond, LeaseDuration: time.Second, HeartbeatInterval: 200 * time.Millisecond}
	hangs, _ := latch(t)
	o.PodName = "falls"
	falls := start(t, viaPooler(t, cable.URL()), o, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		select {
		case <-hangs:
		case <-ctx.Done():
		}
		return nil, context.Cause(ctx)
	}})
	id := enqueueStarted(t, falls, rawArgs("k"), runner.Subject("s"))
	o.PodName = "catches"
	catches := start(t, through, o, map[string]handler{"k": succeed})
	cable.Blackhole()
	is.Equal(waitEnded(t, catches, id).State, job.Succeeded)
	is.Equal(queryOne[int](t, direct, `select fence::int from trapeze.done`), 2)
	cable.Pass()
}
