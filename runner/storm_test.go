package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// A pod reads notifications as fast as they arrive, even though it limits the polls that they trigger. If it read them more slowly, it
// would keep polling for minutes after a storm, and only then notice that its connection has closed.
func TestNotificationStorm(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := named("a")
	o.PollInterval = time.Hour
	r := start(t, pool, o, map[string]handler{"a": succeed})
	pgtest.Wait(t, "the pod listens", func() bool { return metricValue(t, r, "trapeze_listen_connected") == 1 })
	const listener = `select pid from pg_stat_activity where datname = current_database() and application_name = 'trapeze-listen'`
	old := queryOne[int](t, pool, listener)
	for range 20 {
		exec(t, pool, `select pg_notify('trapeze_wake', n::text) from generate_series(1, 200) n`)
	}
	is.True(queryOne[bool](t, pool, `select pg_terminate_backend($1)`, old))
	pgtest.WaitFor(t, 10*time.Second, "the pod listens on a new connection", func() bool {
		return queryOne[bool](t, pool, `select exists (`+listener+` and pid <> $1)`, old)
	})
}
