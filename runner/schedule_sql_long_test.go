//go:build long

package runner_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Timestamps that a pod cannot represent, such as infinity, must be refused when they are written with SQL. Otherwise, pods would receive
// them in their heartbeat responses.
func TestUnrepresentableScheduleTimestamps(t *testing.T) {
	t.Parallel()
	for _, moment := range firstOf(2, "infinity", "0300-01-01 BC", "-infinity", "20000-01-01") {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
			_, err := r.Admin("ann").SetSchedule(t.Context(), "strange", every("@daily"))
			is.NoErr(err)
			for _, sql := range []string{`update trapeze.schedules set next_at = $1::text::timestamptz`, `update trapeze.schedules set anchor = $1::text::timestamptz`} {
				_, err = pool.Exec(t.Context(), sql, moment)
				is.True(store.Refused(err)) // the SQL client gets the error
			}
			lease := func() time.Time { return queryOne[time.Time](t, pool, `select lease_until from trapeze.pods`) }
			before := lease()
			pgtest.Wait(t, "the lease is renewed", func() bool { return lease().After(before.Add(time.Second)) })
			_, err = r.Admin("ann").SetSchedule(t.Context(), "other", every("@every 1s"))
			is.NoErr(err)
			pgtest.Wait(t, "the other schedule fires", func() bool { return ofOutcome(occurrences(t, r, "other"), job.OccurrenceFired) > 0 })
			list, err := r.Admin("").Schedules(t.Context())
			is.NoErr(err)
			_, err = json.Marshal(list)
			is.NoErr(err) // the list can still be encoded
		})
	}
}
