package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestConcurrentPartitionCreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pgtest.AllDays(t, w.pool)
	n, err := upkeep.EnsurePartitions(w.ctx(), w.Store, 7)
	w.is.NoErr(err)
	w.is.Equal(n, 0) // the migration has already created them
	ensure := func() (int, error) { return upkeep.EnsurePartitions(w.ctx(), w.Store, 9) }
	x, y, z := async(ensure), async(ensure), async(ensure)
	made := 0
	for _, wait := range []func() (int, error){x, y, z} {
		n, err := wait()
		w.is.NoErr(err)
		made += n
	}
	w.is.Equal(made, 2*4) // two more days are created for each of four tables
}

func TestUTCDayBoundaries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pgtest.AllDays(t, w.pool)
	w.exec(`alter database ` + w.pool.Config().ConnConfig.Database + ` set timezone = 'Pacific/Auckland'`) // where the next day has usually begun already
	w.pool.Reset()
	w.Pool().Reset()
	n, err := upkeep.EnsurePartitions(w.ctx(), w.Store, 9)
	w.is.NoErr(err)
	w.is.Equal(n, 2*4)
	var midnight time.Time
	w.is.NoErr(w.pool.QueryRow(w.ctx(), `select date_trunc('day', now(), 'UTC')`).Scan(&midnight))
	for i, at := range []time.Duration{-24 * time.Hour, -time.Microsecond, 0, 24*time.Hour - time.Microsecond, 24 * time.Hour, 10*24*time.Hour - time.Microsecond} {
		w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, finished_at)
			values ($2, 'succeeded', 'ok', 'ok', 1, 1, 1, 1, 0, 10, 'default', $1)`, midnight.Add(at), i)
		var table string
		w.is.NoErr(w.pool.QueryRow(w.ctx(), `select tableoid::regclass::text from trapeze.done where finished_at = $1`, midnight.Add(at)).Scan(&table))
		w.is.Equal(table, "trapeze.done_succeeded_"+midnight.Add(at).UTC().Format("20060102"))
	}
	w.exec(`delete from trapeze.done`)
}

// age moves finished jobs and their history to the day three days ago, which gets separate partitions. Regardless of the current time, that
// day ended more than 30 hours ago.
func (w *world) age(ids ...int64) {
	w.t.Helper()
	day := time.Now().UTC().AddDate(0, 0, -3)
	for _, parent := range []string{"done_succeeded", "done_failed", "job_events"} {
		w.exec(`select trapeze.create_day($1, $2)`, parent, day)
	}
	at := time.Date(day.Year(), day.Month(), day.Day(), 12, 0, 0, 0, time.UTC)
	w.exec(`update trapeze.done set finished_at = $2 where id = any($1)`, ids, at)
	w.is.NoErr(ageEvents(w.ctx(), w.pool, ids, at))
}

func TestForgetOldDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pgtest.AllDays(t, w.pool)
	podID := w.pod("a")
	old := w.put(about("s"), plain, plain)
	for _, c := range w.claims(podID, 3) {
		w.is.NoErr(w.Progress(w.ctx(), leaseOf(podID, c), job.Progress{Done: ptr(int64(1))}))
		w.end(podID, ending(c))
	}
	young := w.put(about("t"))
	w.end(podID, ending(w.claimOne(podID)))
	failed := w.put(plain)
	e := ending(w.claimOne(podID))
	e.State, e.Outcome, e.Reason = job.Failed, job.Error, job.ReasonError
	w.end(podID, e)
	w.age(append(old, failed...)...)
	// An operator has retried one of the old jobs. Its row from the first epoch is still in done.
	w.exec(`insert into trapeze.live (id, ready_at, fence, event_no, epoch, priority, state, lane, kind, subject)
		values ($1, now(), 1, 4, 2, 10, 'pending', 'default', 'k', '')`, old[2])

	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 3)
	for _, id := range old[:2] {
		_, err := view.Job(w.ctx(), w.Store, id)
		w.is.True(errors.Is(err, job.ErrNotFound))
	}
	w.is.Equal(w.at(old[2]).State, job.Pending)       // the retried job is kept
	w.is.Equal(*w.at(old[2]).Progress.Done, int64(1)) // the job's progress and checkpoint are kept
	w.is.Equal(w.at(young[0]).State, job.Succeeded)   // a more recent job is kept
	w.is.Equal(w.at(failed[0]).State, job.Failed)     // a job with a different retention is kept
	w.is.Equal(w.count(`select count(*) from trapeze.job_progress`), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.subjects`), 1) // the row of subject s is deleted, but not that of t
	n, err = upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 0)
	w.is.Equal(w.count(`select count(*) from pg_inherits where inhparent = 'trapeze.done_succeeded'::regclass`), 10) // including the default partition
	days, err := upkeep.ForgetEvents(w.ctx(), w.Store, 30*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(days, 1)
	w.exec(`delete from trapeze.live where id = $1`, old[2]) // the job no longer has a history
	w.exec(`delete from trapeze.jobs where id = any($1)`, append(failed, old[2]))
	w.exec(`delete from trapeze.done where id = any($1)`, failed)
}

func TestConcurrentForgetByTwoPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	old := w.put(plain, plain, plain)
	for _, c := range w.claims(podID, 3) {
		w.end(podID, ending(c))
	}
	w.age(old...)
	forget := func() (int, error) { return upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced) }
	x, y := async(forget), async(forget)
	_, err1 := x()
	_, err2 := y()
	w.is.NoErr(errors.Join(err1, err2))
	w.is.Equal(w.count(`select count(*) from trapeze.jobs`), 0)
}

// PostgreSQL looks up a partition before it locks it for dropping. If another session drops the partition in between, the error is "could
// not find tuple for parent of relation".
func TestConcurrentDropsOfSameDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n := range 20 {
		day := time.Date(2020, 1, 1+n, 0, 0, 0, 0, time.UTC)
		w.exec(fmt.Sprintf(`create table trapeze.job_events_%s partition of trapeze.job_events for values from ('%s 00:00:00+00') to ('%s 00:00:00+00')`,
			day.Format("20060102"), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
	}
	drop := func() (int, error) { return upkeep.ForgetEvents(w.ctx(), w.Store, 365*24*time.Hour, unpaced) }
	var ends []func() (int, error)
	for range 4 {
		ends = append(ends, async(drop))
	}
	for _, end := range ends {
		_, err := end()
		w.is.NoErr(err)
	}
	w.is.Equal(w.count(`select count(*) from pg_class where relname like 'job\_events\_2020%'`), 0)
}

func TestForgottenClosedPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.is.NoErr(w.Leave(w.ctx(), a))
	w.exec(`update trapeze.pods set closed_at = now() - interval '2 hours' where id = $1`, a)
	w.exec(`insert into trapeze.claim_requests (pod, job_id, fence, what, created_at) select $1, g, 1, 'stack', now() - g * interval '9 minutes' from generate_series(1, 2) g`, b)
	n, err := upkeep.PrunePods(w.ctx(), w.Store, time.Hour, 500)
	w.is.NoErr(err)
	w.is.Equal(n, 0) // the pod's jobs have not been recovered yet
	w.recover(b, 100)
	n, err = upkeep.PrunePods(w.ctx(), w.Store, time.Hour, 500)
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	pods, err := view.Pods(w.ctx(), w.Store, true)
	w.is.NoErr(err)
	w.is.Equal(len(pods), 1)
	w.is.Equal(pods[0].PodID, b)
	w.is.Equal(w.count(`select sum(job_id)::int from trapeze.claim_requests`), 1) // the other request was made by a command that gave up long ago
}
