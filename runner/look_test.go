package runner

import (
	"log/slog"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// Much is due at noon, and missed fires are skipped: what comes late because the pod was busy with the rest is on time all the same. What
// comes late because the pod was frozen is not.
func TestAFireIsNotMissedBecausePodsAreBusyWithOthers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, err := New(pool, Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	t.Cleanup(r.Close)
	noon := time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)
	_, err = pool.Exec(t.Context(), `
		insert into trapeze.schedules (name, expression, kind, missed, planned, next_at, anchor)
		select name, '0 12 * * *', 'k', 'skip', true, $1, $1::timestamptz - interval '1 hour' from unnest(array['a', 'b', 'c', 'd', 'e']) as n(name)`, noon)
	is.NoErr(err)
	r.calendar.kinds = []string{"k"}
	l := &look{r: r}
	for _, late := range []time.Duration{0, 50 * time.Second, 100 * time.Second, 150 * time.Second, 150*time.Second + 2*job.MissedAfter} {
		at := noon.Add(late)
		l.at, l.alone = &at, 1 // one at a time, as of a crowd
		is.True(l.goesOn(t.Context()))
	}
	for name, want := range map[string]job.FireOutcome{
		"a": job.FireFired, "b": job.FireFired, "c": job.FireFired, "d": job.FireFired, "e": job.FireMissed,
	} {
		list, err := r.ScheduleFires(t.Context(), name, 1)
		is.NoErr(err)
		is.Equal(len(list), 1)
		is.Equal(list[0].Outcome, want)
	}
	// Who looks for the first time was not there before.
	_, err = pool.Exec(t.Context(), `update trapeze.schedules set next_at = $1`, noon.AddDate(0, 0, 1))
	is.NoErr(err)
	r.FireAt(t.Context(), noon.AddDate(0, 0, 1).Add(2*time.Minute))
	list, err := r.ScheduleFires(t.Context(), "a", 1)
	is.NoErr(err)
	is.Equal(list[0].Outcome, job.FireMissed)
}
