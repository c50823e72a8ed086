package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// fire inserts count hourly occurrences of a schedule, the latest of them about daysAgo days ago. Every nth occurrence has a job.
func (w *world) fire(name string, count int, daysAgo int, nth int) {
	w.t.Helper()
	_, err := w.pool.Exec(w.ctx(), `
		insert into trapeze.schedule_occurrences (schedule, fire_at, decided_at, outcome, job_id)
		select $1, now() - $3::int * interval '1 day' - n * interval '1 hour', now() - $3::int * interval '1 day' - n * interval '1 hour',
			case when n % $4::int = 0 then 'fired' else 'overlap' end, case when n % $4::int = 0 then n end
		from generate_series(1, $2::int) as n`, name, count, daysAgo, nth)
	w.is.NoErr(err)
}

func (w *world) countOccurrences(name string) int {
	w.t.Helper()
	return w.count(`select count(*) from trapeze.schedule_occurrences where schedule = $1`, name)
}

func TestOldOccurrenceRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fire("old", 60, 30, 1)
	w.fire("few", 15, 30, 1)
	w.fire("young", 60, 0, 1)
	w.fire("busy", 6000, 30, 100) // occurrences with a job can be older than the latest ones, for example if a job runs for a very long time
	w.fire("ahead", 60, 30, 1)
	_, err := w.pool.Exec(w.ctx(), `insert into trapeze.schedules (name, expression, kind, planned, next_at)
		select 'ahead', '@daily', 'k', true, now() - interval '30 days 50 hours 30 minutes'`)
	w.is.NoErr(err)
	n, err := upkeep.PruneOccurrences(w.ctx(), w.Store, 168*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(w.countOccurrences("old"), 20)
	w.is.Equal(w.countOccurrences("few"), 15)
	w.is.Equal(w.countOccurrences("young"), 60)
	w.is.Equal(w.countOccurrences("busy"), 20+20) // the latest occurrences and the latest ones with a job are kept
	w.is.Equal(w.countOccurrences("ahead"), 50)   // decisions made for future occurrences are kept
	again, err := upkeep.PruneOccurrences(w.ctx(), w.Store, 168*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(again, 0)
	w.is.Equal(n, 40+(6000-40)+10)
}

// No two transactions take the same due schedule concurrently, and neither waits for the other.
func TestDueScheduleTakenOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.pool.Exec(w.ctx(), `insert into trapeze.schedules (name, expression, kind, planned, next_at) values
		('b', '@daily', 'k', true, now() - interval '1 minute'), ('a', '@daily', 'k', true, now() - interval '1 second'),
		('later', '@daily', 'k', true, now() + interval '1 minute'), ('foreign', '@daily', 'other', true, now())`)
	w.is.NoErr(err)
	take := func(tx pgx.Tx, passOver ...string) string {
		due, err := admin.TakeDue(w.ctx(), w.Store, tx, []string{"k"}, passOver, nil, 1)
		w.is.NoErr(err)
		if len(due) == 0 {
			return ""
		}
		return due[0].Name
	}
	w.is.NoErr(w.Tx(w.ctx(), func(one pgx.Tx) error {
		w.is.Equal(take(one), "b") // the schedule that has been due the longest comes first
		return w.Tx(w.ctx(), func(two pgx.Tx) error {
			w.is.Equal(take(two), "a")
			return w.Tx(w.ctx(), func(three pgx.Tx) error {
				w.is.Equal(take(three), "") // nothing else is due, and the transaction did not wait
				return nil
			})
		})
	}))
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) error {
		w.is.Equal(take(tx, "b"), "a") // a schedule that was skipped does not block others
		return nil
	}))
	now, next, err := admin.NextFire(w.ctx(), w.Store, []string{"k"})
	w.is.NoErr(err)
	w.is.True(next.After(now)) // schedules that are already due do not hide the next one
}

// An occurrence is decided only once. Later attempts to decide it have no effect.
func TestAFireIsDecidedOnce(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorldOn(t, pgtest.Pool(t), store.Options{Connections: 8})
	at := time.Now().Truncate(time.Second)
	insert := func(list ...job.Occurrence) (decided []job.Occurrence) {
		w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) (err error) {
			decided, err = admin.InsertOccurrences(w.ctx(), w.Store, tx, list)
			return err
		}))
		return decided
	}
	first := job.Occurrence{Schedule: "s", FireAt: at, Outcome: job.OccurrenceFired}
	is.Equal(len(insert(first)), 1)
	decided := insert(first, job.Occurrence{Schedule: "s", FireAt: at.Add(time.Second), Outcome: job.OccurrenceFired},
		job.Occurrence{Schedule: "t", FireAt: at, Outcome: job.OccurrenceFired})
	is.Equal(len(decided), 2) // only the other two occurrences are new
	is.Equal(decided[0].FireAt, at.Add(time.Second))
}
