package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// ended inserts jobs of a kind, without a history, as if they had succeeded on a past day. It returns the first and the last id.
func (w *world) ended(kind string, n int) (first, last int64) {
	w.t.Helper()
	ids, err := w.NewIDs(w.ctx(), n)
	w.is.NoErr(err)
	first, last = ids[0], ids[n-1]
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id, xid)
		select g, $1, 'default', '{}', g, pg_current_xact_id() from unnest($2::bigint[]) g`, kind, ids)
	w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
		select g, 'succeeded', 'ok', 'ok', 1, 1, 1, 1, 0, 10, 'default' from unnest($1::bigint[]) g`, ids)
	w.age(ids...)
	return first, last
}

// left returns how many jobs in a range of ids remain in jobs and in done.
func (w *world) left(first, last int64) (jobs, ends int) {
	w.t.Helper()
	return w.count(`select count(*) from trapeze.jobs where id between $1 and $2`, first, last),
		w.count(`select count(*) from trapeze.done where id between $1 and $2`, first, last)
}

func (w *world) oldDays() int {
	w.t.Helper()
	return w.count(`select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'trapeze.done_succeeded'::regclass
		and right(c.relname, 8) < to_char((now() at time zone 'UTC')::date - 1, 'YYYYMMDD')`)
}

func TestKindRetentionChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forget := func(keep time.Duration) int {
		t.Helper()
		n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", keep, unpaced)
		w.is.NoErr(err)
		return n
	}
	a1, a9 := w.ended("audited", 3)
	b1, b9 := w.ended("chatty", 2500)
	c1, c9 := w.ended("other", 4)
	w.exec(`insert into trapeze.kind_retention values ('chatty', 'succeeded', 3600), ('audited', 'succeeded', 0), ('other', 'failed', 1)`)

	w.is.Equal(forget(-1), 2500) // jobs of one kind can be deleted even if all other jobs are kept forever
	jobs, ends := w.left(b1, b9)
	w.is.Equal([]int{jobs, ends}, []int{0, 0}) // no jobs of the kind are left
	w.is.Equal(forget(-1), 0)                  // the day is not scanned again
	jobs, ends = w.left(c1, c9)
	w.is.Equal([]int{jobs, ends}, []int{4, 4}) // the rule for a different state has no effect

	w.is.Equal(forget(30*time.Hour), 4) // only jobs of the kind that is kept longer remain on the past day
	jobs, ends = w.left(a1, a9)
	w.is.Equal([]int{jobs, ends}, []int{3, 3})
	w.is.Equal(w.oldDays(), 1)

	w.exec(`update trapeze.kind_retention set keep_s = 7200 where kind = 'audited'`)
	w.is.Equal(forget(30*time.Hour), 3) // the changed rule takes effect on the same day
	w.is.Equal(w.oldDays(), 0)          // the day is dropped once its last job has been deleted
}

func TestRetentionInterruptedBetweenBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, last := w.ended("k", 4_000+10)
	lost := errors.New("the lead is lost")
	batches := 0
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", time.Hour, func(context.Context) error {
		if batches++; batches == 3 {
			return lost
		}
		return nil
	})
	w.is.True(errors.Is(err, lost)) // retention stops immediately
	w.is.Equal(n, 4_000)            // the completed batches are counted
	jobs, ends := w.left(first, last)
	w.is.Equal(jobs, 10)
	w.is.Equal(ends, 4_000+10) // the day remains
	n, err = upkeep.Forget(w.ctx(), w.Store, "succeeded", time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 10) // no job is counted twice
	w.is.Equal(w.oldDays(), 0)
}

func TestRetentionLockedOrRefusedRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, last := w.ended("k", 50)
	other := time.Now().UTC().AddDate(0, 0, -4)
	w.exec(fmt.Sprintf(`create table trapeze.done_succeeded_%s (like trapeze.done_succeeded including all)`, other.Format("20060102")))
	w.exec(fmt.Sprintf(`alter table trapeze.done_succeeded attach partition trapeze.done_succeeded_%s for values from ('%s 00:00+00') to ('%s 00:00+00')`,
		other.Format("20060102"), other.Format(time.DateOnly), other.AddDate(0, 0, 1).Format(time.DateOnly)))
	w.exec(`update trapeze.done set finished_at = finished_at - interval '1 day' where id between $1 and $2`, first, first+9) // these jobs, including the two that cannot be deleted, ended on an older day
	w.exec(`create function refuse() returns trigger language plpgsql as 'begin raise exception ''no''; end'`)
	w.exec(fmt.Sprintf(`create trigger refuse before delete on trapeze.jobs for each row when (old.id = %d) execute function refuse()`, first))
	release := w.freeze(`select from trapeze.jobs where id = $1 for update`, first+1)
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", time.Hour, unpaced)
	w.is.True(err != nil && strings.Contains(err.Error(), fmt.Sprintf("job %d:", first))) // the error names the job
	w.is.Equal(n, 48)                                                                     // all other jobs are deleted, including those of the next day
	w.is.Equal(w.oldDays(), 1)                                                            // the next day is dropped
	release(true)
	w.exec(`drop trigger refuse on trapeze.jobs`)
	n, err = upkeep.Forget(w.ctx(), w.Store, "succeeded", time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 2)
	jobs, ends := w.left(first, last)
	w.is.Equal([]int{jobs, ends}, []int{0, 0})
}

func TestRetentionForDelayedNextStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	parent := w.claimOne(podID)
	child := w.new(then(parent, func(n *store.NewJob) { n.Starts, n.DelayMillis = false, 30*24*3600*1000 }))[0]
	w.end(podID, endingWith(parent, child))
	w.age(parent.ID)
	first, last := w.ended("k", 20)
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 20)
	jobs, ends := w.left(first, last)
	w.is.Equal([]int{jobs, ends}, []int{0, 0})
	w.is.Equal(w.at(parent.ID).State, job.Succeeded) // the child can still read its parent's result
	w.exec(`update trapeze.parked set run_after = now()`)
	_, _, err = w.Promote(w.ctx(), 10)
	w.is.NoErr(err)
	w.end(podID, ending(w.claimOne(podID)))
	n, err = upkeep.Forget(w.ctx(), w.Store, "succeeded", time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 1) // now the parent is deleted too
	w.is.Equal(w.oldDays(), 0)
}

func TestUniqueKeyCleanup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.put(plain)[0]
	w.exec(`insert into trapeze.unique_keys (kind, key, job_id) values ('k', 'mine', $1), ('k', 'old', $1 + 1000000), ('k', 'taken', $1 + 2000000)`, id)
	release := w.freeze(`select from trapeze.unique_keys where key = 'taken' for update`) // a submission locks a key like this when it takes the key over
	prune := func() (int, error) { return upkeep.PruneKeys(w.ctx(), w.Store, unpaced) }
	x, y := async(prune), async(prune)
	n1, err1 := x()
	n2, err2 := y()
	w.is.NoErr(errors.Join(err1, err2))
	w.is.Equal(n1+n2, 1)
	w.is.Equal(w.count(`select count(*) from trapeze.unique_keys where key in ('mine', 'taken')`), 2)
	release(false)
	n1, err1 = upkeep.PruneKeys(w.ctx(), w.Store, unpaced)
	w.is.NoErr(err1)
	w.is.Equal(n1, 1)
	w.exec(`delete from trapeze.unique_keys`)
}

func TestSubjectCleanup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("busy"), about("lost"))
	claims := w.claims(podID, 2)
	w.is.Equal(len(claims), 2)
	w.exec(`insert into trapeze.subjects (kind, subject, job_id, state) values ('k', 'stray', 1, 'held')`)
	ended, err := upkeep.ReconcileGuards(w.ctx(), w.Store, 10)
	w.is.NoErr(err)
	w.is.Equal(ended, []upkeep.UnheldGuard{{Kind: "k", Subject: "stray", JobID: 1}})
	w.is.Equal(w.count(`select count(*) from trapeze.subjects where state = 'held'`), 2)
	for _, c := range claims {
		w.end(podID, ending(c))
	}
	w.exec(`delete from trapeze.subjects where subject = 'stray'`)
}

func TestGrantedSlotsReconciliation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.lanes (name, slots) values ('l', 5), ('m', 5)`)
	_, err := store.SettleSlots(w.ctx(), w.Store, podID, []store.Ask{{"l", 2, 2, 2}, {"m", 1, 1, 1}}, []string{"k"})
	w.is.NoErr(err)
	lanes, err := upkeep.ReconcileGrants(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(lanes), 0)
	w.exec(`insert into trapeze.slot_grants (lane, pod, slots, asked) values ('l', '00000000-0000-4000-8000-000000000001', 3, 1)`)
	w.exec(`update trapeze.lanes set granted = granted + 3`)
	lanes, err = upkeep.ReconcileGrants(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(lanes, []string{"default", "l", "m"})
	w.is.Equal(w.count(`select granted from trapeze.lanes where name = 'l'`), 2)
	w.is.Equal(w.count(`select granted from trapeze.lanes where name = 'm'`), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.slot_grants`), 2)
}

func TestMaintenanceTaskExclusiveTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	take := func(pod string, within time.Duration) bool {
		t.Helper()
		given, err := upkeep.BeginTask(w.ctx(), w.Store, "c", pod, within)
		w.is.NoErr(err)
		return given
	}
	var asks []func() (bool, error)
	for range 6 {
		asks = append(asks, async(func() (bool, error) { return upkeep.BeginTask(w.ctx(), w.Store, "c", "p", time.Minute) }))
	}
	given := 0
	for _, ask := range asks {
		got, err := ask()
		w.is.NoErr(err)
		if got {
			given++
		}
	}
	w.is.Equal(given, 1)
	w.is.True(take("leader", 0))
	w.is.True(!take("b", time.Minute))
	w.exec(`update trapeze.maintenance set begun_at = now() - interval '2 minutes'`)
	w.is.True(take("b", time.Minute))
	w.exec(`update trapeze.maintenance set begun_at = now() + interval '1 day'`) // the clock was set back
	w.is.True(take("b", time.Minute))
	w.is.NoErr(upkeep.EndTask(w.ctx(), w.Store, upkeep.TaskRun{Task: "c", Pod: "b", Count: 3, Seconds: 0.5}))
	runs, err := upkeep.TaskRuns(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(runs), 1)
	w.is.Equal(runs[0].Count, int64(3))
	w.is.Equal(runs[0].Pod, "b")
}

func TestVacuumBehindAutovacuum(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	behind := func() []upkeep.Behind {
		t.Helper()
		w.exec(`select pg_stat_clear_snapshot()`)
		list, err := upkeep.TablesBehind(w.ctx(), w.Store, 100)
		w.is.NoErr(err)
		return list
	}
	w.exec(`alter table trapeze.submissions set (autovacuum_enabled = off)`)
	w.exec(`insert into trapeze.submissions (key, job_id, fingerprint) select g, g, '' from generate_series(1, 5000) g`)
	w.exec(`delete from trapeze.submissions`)
	pgtest.Wait(t, "the statistics have arrived", func() bool { l := behind(); return len(l) == 1 && l[0].Vacuum })
	b := behind()[0]
	w.is.Equal(b.Name, "submissions")
	w.is.True(b.May && b.Dead >= 5000)
	release := w.freeze(`lock table trapeze.submissions in row exclusive mode`)
	w.is.NoErr(upkeep.Vacuum(w.ctx(), w.Store, b)) // a writer does not block the vacuum
	release(false)
	locked := w.freeze(`lock table trapeze.submissions in access exclusive mode`)
	w.is.NoErr(upkeep.Vacuum(w.ctx(), w.Store, b)) // a locked table is skipped
	locked(false)
	pgtest.Wait(t, "nothing is behind", func() bool { return len(behind()) == 0 })

}

func TestKindRetentionAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set := func(keep *job.Seconds) job.RetentionChanged {
		t.Helper()
		done, err := admin.SetRetention(w.ctx(), w.Store, "k", job.Failed, keep, "ann")
		w.is.NoErr(err)
		return done
	}
	day, week := job.Seconds(24*time.Hour), job.Seconds(7*24*time.Hour)
	w.is.Equal(set(&day), job.RetentionChanged{Kind: "k", State: job.Failed, Changed: true, After: &day})
	w.is.Equal(set(&day).Changed, false) // setting the same value changes nothing and is not recorded
	w.is.Equal(*set(&week).Before, day)
	list, err := admin.Retentions(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(list, []job.Retention{{Kind: "k", State: job.Failed, Keep: week}})
	w.is.True(set(nil).Changed)
	w.is.Equal(set(nil).Changed, false)
	w.is.Equal(w.count(`select count(*) from trapeze.kind_retention`), 0)
	w.is.Equal(w.count(`select count(*) from trapeze.audit where action = 'retention.set' and target = 'kind k' and actor = 'ann' and allowed`), 3)
	w.is.Equal(w.count(`select count(*) from trapeze.job_events where event = 'retention.changed' and message = 'k' and actor = 'ann'`), 3)
	long, none, half := job.Seconds(job.MaxKeep+time.Second), job.Seconds(-time.Second), job.Seconds(time.Second/2)
	for _, wrong := range []struct {
		kind  string
		state job.State
		keep  *job.Seconds
	}{{"", job.Failed, &day}, {strings.Repeat("k", 101), job.Failed, &day}, {"k", job.Running, &day}, {"k", job.Failed, &long}, {"k", job.Failed, &none}, {"k", job.Failed, &half}, {"k", "", nil}} {
		_, err := admin.SetRetention(w.ctx(), w.Store, wrong.kind, wrong.state, wrong.keep, "ann")
		w.is.True(errors.Is(err, job.ErrInvalidSetting))
	}
}
