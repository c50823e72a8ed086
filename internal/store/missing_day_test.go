package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// dropToday drops today's partition of every partitioned table, as if no pod had run for a week.
func (w *world) dropToday() {
	w.t.Helper()
	w.exec(`do $$ declare parent text; begin
		foreach parent in array array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events'] loop
			execute 'drop table trapeze.' || parent || to_char(now() at time zone 'UTC', '_YYYYMMDD');
		end loop;
	end $$`)
}

// inDefaults counts the rows of all default partitions.
func (w *world) inDefaults() int {
	w.t.Helper()
	return w.count(`select count(*) from (select from trapeze.done_succeeded_default union all select from trapeze.done_failed_default
		union all select from trapeze.done_cancelled_default union all select from trapeze.job_events_default) d`)
}

func (w *world) ensurePartitions() int {
	w.t.Helper()
	made, err := upkeep.EnsurePartitions(w.ctx(), w.Store, 1)
	w.is.NoErr(err)
	return made
}

// Every statement succeeds without a partition for today. Maintenance then moves the rows to a new partition, without a second on-failure
// job, and with the same events in the same order.
func TestWritesSucceedWithoutTodaysPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.kinds (kind, on_failure) values ('k', '[{"kind": "cleanup", "lane": "default", "args": {}}]')`)
	w.dropToday()
	w.put(plain, plain, plain)
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	_, err = tx.Exec(w.ctx(), `select trapeze.enqueue('k', '{}')`) // the application's own transaction
	w.is.NoErr(err)
	w.is.NoErr(tx.Commit(w.ctx()))
	claims := w.claims(podID, 4)
	w.is.Equal(len(claims), 4)
	for i, state := range []job.State{job.Succeeded, job.Failed, job.Failed, job.Cancelled} {
		e := ending(claims[i])
		e.State, e.Outcome, e.Reason = state, job.Error, job.ReasonError
		_, ok := w.end(podID, e)
		w.is.True(ok)
	}
	const history = `select string_agg(e.xid::text || ' ' || e.event, ',' order by e.xid, e.event) from trapeze.job_events e`
	before, rows := pgtest.QueryOne[string](w.t, w.pool, history), w.inDefaults()
	w.is.True(rows > 8)
	found, err := view.ReadDefaultRows(w.ctx(), w.Store) // for doctor
	w.is.NoErr(err)
	w.is.Equal(len(found), 4)
	w.is.Equal(found[0].Table, "job_events")
	w.is.Equal(w.count(`select count(*) from trapeze.jobs where kind = 'cleanup'`), 2)

	w.is.Equal(w.ensurePartitions(), 4)
	w.is.Equal(w.inDefaults(), 0)
	w.is.Equal(pgtest.QueryOne[string](w.t, w.pool, history), before)
	w.is.Equal(w.count(`select count(*) from trapeze.jobs where kind = 'cleanup'`), 2)
	w.is.Equal(w.count(`select count(*) from trapeze.done`), 4)
	w.is.Equal(w.ensurePartitions(), 0)
	_, err = w.Enqueue(w.ctx(), uuid.NewString(), w.new(plain))
	w.is.NoErr(err)
	w.is.Equal(w.inDefaults(), 0)
}

// A database may have further columns, of which some are generated. Days are still created, and rows are moved to them.
func TestDaysWithGeneratedColumns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	for table, column := range map[string]string{"done": "reason", "job_events": "event"} {
		w.exec(`alter table trapeze.` + table + ` add mine text default 'm', add made text generated always as (upper(` + column + `)) stored`)
	}
	w.dropToday()
	w.put(plain)
	_, ok := w.end(podID, ending(w.claims(podID, 1)[0]))
	w.is.True(ok)
	w.is.Equal(w.ensurePartitions(), 4)
	w.is.Equal(w.inDefaults(), 0)
}

// While another transaction holds a lock, maintenance waits only briefly, so that pods are not blocked behind it.
func TestMissingDayDuringOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dropToday()
	w.put(plain)
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(w.ctx()) }()
	_, err = tx.Exec(w.ctx(), `select trapeze.enqueue('k', '{}')`)
	w.is.NoErr(err)
	began := time.Now()
	made, err := upkeep.EnsurePartitions(w.ctx(), w.Store, 1)
	w.is.True(upkeep.LockTimedOut(err))
	w.is.Equal(made, 3) // the tables that the transaction has not used
	w.is.True(time.Since(began) < 5*time.Second)
	_, err = tx.Exec(w.ctx(), `select trapeze.enqueue('k', '{}')`)
	w.is.NoErr(err)
	w.is.NoErr(tx.Commit(w.ctx()))
	w.is.Equal(w.ensurePartitions(), 1)
	w.is.Equal(w.inDefaults(), 0)
}

// Rows of days that are long past are moved to their days, which retention then drops.
func TestRowsOfMissingPastDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(plain, plain)
	for _, c := range w.claims(podID, 2) {
		_, ok := w.end(podID, ending(c))
		w.is.True(ok)
	}
	w.exec(`update trapeze.done set finished_at = finished_at - interval '3 days' where id = $1`, ids[0])
	w.exec(`update trapeze.done set finished_at = finished_at + interval '30 days' where id = $1`, ids[1])
	w.is.Equal(w.inDefaults(), 2)
	w.is.Equal(w.at(ids[0]).State, job.Succeeded)
	w.is.Equal(w.ensurePartitions(), 2)
	w.is.Equal(w.inDefaults(), 0)
	gone, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 24*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(gone, 1)
	w.is.Equal(w.count(`select count(*) from trapeze.done`), 1)
}

func TestPartitionsTooFarAhead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	pgtest.AllDays(t, pool)
	w := newWorldOn(t, pool, store.Options{Connections: 8})
	for _, days := range []int{-1, 101, 100_000} {
		_, err := upkeep.EnsurePartitions(w.ctx(), w.Store, days)
		w.is.True(err != nil)
		w.is.True(store.Refused(err))
	}
}

// Statements that run while a day's rows are moved neither fail nor miss a row.
func TestStatementsDuringPartitionMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dropToday()
	w.put(plain, plain, plain)
	podID := w.pod("a")
	for _, c := range w.claims(podID, 3) {
		_, ok := w.end(podID, ending(c))
		w.is.True(ok)
	}
	events := w.count(`select count(*) from trapeze.job_events`)
	mover, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	_, err = mover.Exec(w.ctx(), `select trapeze.ensure_partitions(0)`)
	w.is.NoErr(err)
	read := async(func() (n int, err error) {
		return n, w.pool.QueryRow(w.ctx(), `select (select count(*) from trapeze.done) + (select count(*) from trapeze.job_events)`).Scan(&n)
	})
	written := async(func() (int, error) {
		_, err := w.pool.Exec(w.ctx(), `insert into trapeze.job_events (event, event_no) values ('pod.joined', 1)`)
		return 0, err
	})
	w.waiting(2)
	w.is.NoErr(mover.Commit(w.ctx()))
	n, err := read()
	w.is.NoErr(err)
	w.is.True(n == 3+events || n == 3+events+1)
	_, err = written()
	w.is.NoErr(err)
	w.is.Equal(w.inDefaults(), 0)
}

// If the database's clock is set back, the times that it wrote before are ahead of it.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.put(plain)
	found, err := view.ReadFuture(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(found), 0)
	w.exec(`update trapeze.job_events set at = at + interval '1 hour'`)
	w.exec(`update trapeze.pods set started_at = started_at + interval '59 minutes'`)
	found, err = view.ReadFuture(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(found), 2)
	w.is.Equal(found[0].What, "a recent event")
	w.is.True(found[0].Ahead > 59*time.Minute && found[0].Ahead <= time.Hour)
}
