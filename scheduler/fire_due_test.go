package scheduler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Many schedules are due at noon, and missed occurrences are skipped. An occurrence counts as on time if it is late because the pod was
// busy with the others, but not if it is late because the pod was frozen.
func TestLateOccurrenceOnBusyPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	st, err := store.New(t.Context(), pool, store.Options{Connections: 2})
	is.NoErr(err)
	t.Cleanup(st.Close)
	c := NewSubmitter(SubmitterOptions{
		Store: st, Log: slog.New(slog.DiscardHandler), Metrics: telemetry.New(), Kinds: func() []string { return []string{"k"} },
		PodID: func() *string { return nil }, Wake: func() {}, WakePeers: func() {}, Count: func(err error) error { return err },
		Prepare: func(context.Context, pgx.Tx, job.Schedule) (NewJobs, error, error) {
			return func(_ context.Context, ids []int64) (rows []store.NewJob, ended func(error)) {
				for _, id := range ids {
					rows = append(rows, store.NewJob{ID: id, Kind: "k", Lane: job.DefaultLane, Args: []byte("{}")})
				}
				return rows, func(error) {}
			}, nil, nil
		},
	})
	latest := func(name string) job.OccurrenceOutcome {
		t.Helper()
		occurrences, err := admin.LastOccurrences(t.Context(), st, []string{name}, time.Time{}, 1)
		is.NoErr(err)
		is.Equal(len(occurrences[name]), 1)
		return occurrences[name][0].Outcome
	}
	noon := time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)
	_, err = pool.Exec(t.Context(), `
		insert into trapeze.schedules (name, expression, kind, missed, planned, next_at, anchor)
		select name, '0 12 * * *', 'k', 'skip', true, $1, $1::timestamptz - interval '1 hour' from unnest(array['a', 'b', 'c', 'd', 'e']) as n(name)`, noon)
	is.NoErr(err)
	s := &sweep{c: c}
	for _, late := range []time.Duration{0, 50 * time.Second, 100 * time.Second, 150 * time.Second, 150*time.Second + 2*job.MissedAfter} {
		at := noon.Add(late)
		s.at, s.oneByOne = &at, 1 // one at a time, as if many were due
		is.True(s.next(t.Context()))
	}
	for name, want := range map[string]job.OccurrenceOutcome{
		"a": job.OccurrenceFired, "b": job.OccurrenceFired, "c": job.OccurrenceFired, "d": job.OccurrenceFired, "e": job.OccurrenceMissed,
	} {
		is.Equal(latest(name), want)
	}
	// This sweep starts too late to show that the pod was already processing schedules at noon, so the noon occurrence counts as missed.
	_, err = pool.Exec(t.Context(), `update trapeze.schedules set next_at = $1`, noon.AddDate(0, 0, 1))
	is.NoErr(err)
	at := noon.AddDate(0, 0, 1).Add(2 * time.Minute)
	c.FireDue(t.Context(), &at)
	is.Equal(latest("a"), job.OccurrenceMissed)
}
