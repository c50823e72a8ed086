//go:build long

package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// An open transaction that holds a unique key delays only the schedule that uses the key.
func TestScheduleBehindLockedKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = r.EnqueueTx(t.Context(), tx, rawArgs("k"), runner.Unique("one", runner.WhileActive))
	is.NoErr(err)
	keyed, key := every("* * * * * *"), "one"
	keyed.UniqueKey = &key
	_, err = r.Admin("ann").SetSchedule(t.Context(), "keyed", keyed)
	is.NoErr(err)
	_, err = r.Admin("ann").SetSchedule(t.Context(), "free", every("* * * * * *"))
	is.NoErr(err)
	late := func() float64 {
		return queryOne[float64](t, pool, `select coalesce(max(extract(epoch from decided_at - fire_at)), 0)::float8 from trapeze.schedule_occurrences where schedule = 'free'`)
	}
	pgtest.Wait(t, "the free schedule fires", func() bool { return len(occurrences(t, r, "free")) >= 6 })
	is.True(late() < 10) // seconds
	is.NoErr(tx.Commit(t.Context()))
	pgtest.Wait(t, "the keyed schedule fires, too", func() bool {
		return ofOutcome(occurrences(t, r, "keyed"), job.OccurrenceFired)+ofOutcome(occurrences(t, r, "keyed"), job.OccurrenceDuplicate) > 3
	})
}
