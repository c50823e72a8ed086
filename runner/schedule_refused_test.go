package runner_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestOccurrenceDuringUnfinishedPipeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	handlers := map[string]handler{
		"k":    func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("next")), nil },
		"next": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
	}
	other := newRunner(t, pool, runner.Options{}, handlers) // processes the occurrences
	skip := job.OverlapSkip
	change := every("* * * * *")
	change.Overlap = &skip
	_, err := other.Admin("ann").SetSchedule(t.Context(), "s", change)
	is.NoErr(err)
	noon := time.Now().AddDate(1, 0, 0).Truncate(24 * time.Hour) // a year from now, so that nothing is due for the running pod
	exec(t, pool, `update trapeze.schedules set next_at = $1`, noon)
	r := start(t, pool, runner.Options{}, handlers) // not started earlier, because a new minute may have begun since the schedule was set
	decide := func(at time.Time) { other.FireAt(t.Context(), at) }
	decide(noon)
	first := occurrences(t, r, "s")[0]
	is.Equal(first.Outcome, job.OccurrenceFired)
	inState(t, r, *first.JobID, job.Succeeded) // the first job has succeeded, but its next step is still running
	decide(noon.Add(time.Minute))
	second := occurrences(t, r, "s")[0]
	is.Equal(second.Outcome, job.OccurrenceOverlap)
	is.True(second.JobID == nil)
	is.True(second.Message != "")
	by, err := r.Admin("ann").TriggerSchedule(t.Context(), "s", nil)
	is.NoErr(err)
	is.Equal(by.Outcome, job.OccurrenceFired) // a manual trigger ignores the overlap policy
	open()
	quiet(t, pool)
	decide(noon.Add(2 * time.Minute))
	is.Equal(queryOne[string](t, pool, `select outcome from trapeze.schedule_occurrences where fire_at = $1`, noon.Add(2*time.Minute)), "fired") // the pipelines have finished
}

func TestOccurrenceWithHeldUniqueKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	held := enqueue(t, r, rawArgs("k"), runner.Unique("one", runner.WhileActive))
	change, key, missed := every("* * * * *"), "one", job.MissedCatchUp
	change.UniqueKey, change.Missed = &key, &missed
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", change)
	is.NoErr(err)
	noon := utc(t, "05-05T12:00")
	exec(t, pool, `update trapeze.schedules set anchor = $1, next_at = $2`, noon.Add(-time.Second), noon)
	r.FireAt(t.Context(), noon)
	f := occurrences(t, r, "s")[0]
	is.Equal(f.Outcome, job.OccurrenceDuplicate)
	is.True(strings.Contains(f.Message, "holds the unique key"))
	is.True(f.JobID == nil)
	_, err = r.Admin("ann").Cancel(t.Context(), held)
	is.NoErr(err)
	r.FireAt(t.Context(), noon.Add(5*time.Minute)) // five occurrences are due, and the first one takes the key
	list := occurrences(t, r, "s")
	is.Equal(ofOutcome(list, job.OccurrenceFired), 1)
	is.Equal(ofOutcome(list, job.OccurrenceDuplicate), 5)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 2)
}

// If schedules have been made invalid through SQL, their errors are reported and all other schedules still fire.
func TestInvalidScheduleAmongOthers(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	names := []string{"expression", "good", "lane", "args", "stubborn", "zone"}
	for _, name := range names {
		_, err := r.Admin("ann").SetSchedule(t.Context(), name, every("* * * * *"))
		is.NoErr(err)
	}
	exec(t, pool, `update trapeze.schedules set expression = 'every now and then' where name = 'expression'`)
	exec(t, pool, `update trapeze.schedules set zone = 'Mars/Olympus' where name = 'zone'`)
	exec(t, pool, `update trapeze.schedules set lane = 'nowhere' where name = 'lane'`)
	exec(t, pool, `update trapeze.schedules set args = to_json(repeat('x', 2000000)) where name = 'args'`)
	exec(t, pool, `create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$`)
	exec(t, pool, `create trigger refuse before insert on trapeze.schedule_occurrences for each row when (new.schedule = 'stubborn') execute function refuse()`)
	noon := utc(t, "05-05T12:00")
	exec(t, pool, `update trapeze.schedules set anchor = $1, next_at = $2 where planned`, noon.Add(-time.Second), noon)
	r.FireAt(t.Context(), noon)
	outcome := func(name string) string {
		list := column[string](t, pool, `select outcome from trapeze.schedule_occurrences where schedule = $1`, name)
		return strings.Join(list, " ")
	}
	is.Equal(outcome("good"), "fired")  // fires even though invalid schedules precede it
	is.Equal(outcome("lane"), "failed") // its job was refused
	is.Equal(outcome("args"), "failed") // its job was refused too
	is.Equal(outcome("stubborn"), "")   // this schedule was not processed, so it is retried
	is.Equal(outcome("expression"), "") // the schedule never fires
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 1)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules where error <> '' and name in ('expression', 'zone', 'lane', 'args')`), 4) // the errors are reported
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules where planned and next_at is null`), 1)                                    // an expression that no pod can parse
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules where next_at = $1`, noon.Add(time.Minute)), 3)                            // the other schedules continue
	exec(t, pool, `drop trigger refuse on trapeze.schedule_occurrences`)
	exec(t, pool, `update trapeze.schedules set lane = '' where name = 'lane'`)
	r.FireAt(t.Context(), noon.Add(time.Minute))
	is.Equal(outcome("stubborn"), "fired fired")                                                       // including the occurrence that failed before
	is.Equal(queryOne[string](t, pool, `select error from trapeze.schedules where name = 'lane'`), "") // the schedule has been fixed
}

func TestOccurrenceCommitReplyLost(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "s", every("* * * * *"))
	is.NoErr(err)
	noon := utc(t, "05-05T12:00")
	exec(t, direct, `update trapeze.schedules set anchor = $1, next_at = $2`, noon.Add(-time.Second), noon)
	cut := proxy.CutReplyOnce(holds("commit"))
	r.FireAt(t.Context(), noon)
	<-cut
	r.FireAt(t.Context(), noon.Add(time.Second)) // as the next heartbeat would
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.schedule_occurrences where outcome = 'fired'`), 1)
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs`), 1)
}
