package runner_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestQueuedStatementsShareCommits(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint, step int)`)
	const jobs = 300
	r := start(t, pool, runner.Options{Slots: 100}, map[string]handler{"a": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		o := runner.Done(nil)
		if j.Step() < 2 {
			o = runner.Then(rawArgs("a"))
		}
		return o.Write(`insert into mine values (@job, @step)`, pgx.NamedArgs{"job": j.ID(), "step": j.Step()}), nil
	}})
	args := make([]job.Args, jobs)
	for i := range args {
		args[i] = rawArgs("a")
	}
	_, err := r.EnqueueMany(t.Context(), args)
	is.NoErr(err)
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), 3*jobs)
	is.Equal(queryOne[int](t, pool, `select count(distinct job) from mine`), 3*jobs)
	is.Equal(queryOne[int](t, pool, `select count(*) from mine`), 3*jobs)
	is.True(queryOne[int](t, pool, `select count(distinct xmin::text) from mine`) < jobs) // at least two jobs shared a transaction
	is.Equal(queryOne[int](t, pool, `select count(*) from mine m join trapeze.done d on d.id = m.job where d.xid::xid <> m.xmin`), 0)
	checkHistory(t, pool, r)
}

// endTogether returns a handler that makes n jobs finish together. On the first attempt, it waits until all of them have begun.
func endTogether(n int, outcome func(j *raw) *runner.Outcome) handler {
	var begun sync.WaitGroup
	begun.Add(n)
	return func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Attempt() == 1 {
			begun.Done()
			begun.Wait()
		}
		return outcome(j), nil
	}
}

// badValue is a statement argument that panics when it is encoded.
type badValue struct{}

func (badValue) Value() (driver.Value, error) { panic("no value") }

func TestFailingQueuedStatement(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint unique deferrable initially immediate); insert into mine values (0)`)
	insert := `insert into mine values ($1)`
	cases := map[string]struct {
		bad   func(o *runner.Outcome) *runner.Outcome
		class job.ErrorClass
		says  string
	}{
		"a violation": {func(o *runner.Outcome) *runner.Outcome { return o.Write(insert, int64(-1)).Write(insert, int64(0)) }, job.ClassDatabase,
			"statement 2 of 2: ERROR: duplicate key value violates unique constraint \"mine_job_key\" (SQLSTATE 23505)"},
		"no such table":   {func(o *runner.Outcome) *runner.Outcome { return o.Write(`insert into nowhere values (1)`) }, job.ClassDatabase, "statement 1 of 1: "},
		"wrong arguments": {func(o *runner.Outcome) *runner.Outcome { return o.Write(insert) }, job.ClassError, "statement 1 of 1: "},
		"a bad value":     {func(o *runner.Outcome) *runner.Outcome { return o.Write(insert, make(chan int)) }, job.ClassError, "statement 1 of 1: "},
		"a panic":         {func(o *runner.Outcome) *runner.Outcome { return o.Write(insert, badValue{}) }, job.ClassPanic, "in InTx or Write: panic: no value"},
		"a batch": {func(o *runner.Outcome) *runner.Outcome {
			b := &pgx.Batch{}
			b.Queue(insert, int64(-1))
			b.Queue(`select 1/0`)
			return o.WriteBatch(b)
		}, job.ClassDatabase, "statement 2 of 2: ERROR: division by zero (SQLSTATE 22012)"},
		"between functions": {func(o *runner.Outcome) *runner.Outcome {
			return o.Write(insert, int64(-1)).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `delete from mine where job = -1`)
				return err
			}).Write(insert, int64(0))
		}, job.ClassDatabase, "statement 2 of 2: ERROR: duplicate key"},
	}
	const jobs = 20
	kind := func(name string) string { return strings.ReplaceAll(name, " ", "-") }
	handlers := map[string]handler{}
	for name, c := range cases {
		handlers[kind(name)] = endTogether(jobs, func(j *raw) *runner.Outcome {
			if o := runner.Done(nil); string(j.Args.JSON) == `"bad"` {
				return c.bad(o)
			} else {
				return o.Write(insert, j.ID())
			}
		})
	}
	r := start(t, pool, runner.Options{Slots: jobs}, handlers)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var bad int64
			var good []int64
			for i := range jobs {
				if i == jobs/2 {
					bad = enqueue(t, r, rawArgs(kind(name), `"bad"`))
				} else {
					good = append(good, enqueue(t, r, rawArgs(kind(name))))
				}
			}
			j := waitEnded(t, r, bad)
			is.Equal(j.State, job.Failed)
			is.True(strings.Contains(message(j), c.says))
			is.Equal(*j.ErrorClass, c.class)
			for _, id := range good {
				is.Equal(waitEnded(t, r, id).State, job.Succeeded)
			}
			is.Equal(queryOne[int](t, pool, `select count(*) from mine where job = any($1)`, good), len(good))
			is.Equal(queryOne[int](t, pool, `select count(*) from mine where job = -1`), 0)
		})
	}
	checkHistory(t, pool, r)
}

func TestUnqueueableStatement(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint)`)
	many := runner.Done(nil)
	for range 101 {
		many.Write(`insert into mine values (1)`)
	}
	read := &pgx.Batch{}
	read.Queue(`select 1`).QueryRow(func(pgx.Row) error { return nil })
	outcomes := map[string]struct {
		outcome *runner.Outcome
		says    string
	}{
		"commit":   {runner.Done(nil).Write(`insert into mine values (1)`).Write(" -- a comment\n /* and \n one */ COMMIT"), `invalid request: statement 2 begins with "commit"`},
		"set":      {runner.Done(nil).Write(`set role postgres`), `statement 1 begins with "set"`},
		"many":     {many, "the job has 101 statements, at most 100 are allowed"},
		"large":    {runner.Done(nil).Write(`insert into mine select length($1)`, strings.Repeat("x", 1<<20)), "at most 1048576"},
		"array":    {runner.Done(nil).Write(`insert into mine select 1 from unnest($1::text[])`, []string{strings.Repeat("x", 1<<19), strings.Repeat("x", 1<<19)}), "at most 1048576"},
		"read":     {runner.Done(nil).WriteBatch(read), "WriteBatch: statement 1 has a function that reads its result"},
		"snoozing": {runner.Snooze(time.Hour, "").Write(`insert into mine values (1)`), "has not ended"},
	}
	handlers := map[string]handler{}
	for name, c := range outcomes {
		handlers[name] = func(context.Context, *raw) (*runner.Outcome, error) { return c.outcome, nil }
	}
	r := start(t, pool, runner.Options{}, handlers)
	for name, c := range outcomes {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs(name)))
			is.Equal(j.State, job.Failed)
			is.Equal(j.Attempt, 1)
			is.True(strings.Contains(message(j), c.says))
			is.Equal(queryOne[int](t, pool, `select count(*) from mine`), 0)
		})
	}
}

// A queued statement that waits for a lock delays the other jobs in its group only once, until the group times out. After that, jobs of its
// kind are committed individually, while other kinds still share commits.
func TestQueuedStatementWaitsForLock(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint, kind text); create table held (n int); insert into held values (0); create sequence sent; create sequence waited`)
	const jobs = 20
	insert := `insert into mine values ($1, $2)`
	together := endTogether(jobs, func(j *raw) *runner.Outcome {
		if j.Kind() == "waits" {
			return runner.Done(nil).Write(`select nextval('waited')`).Write(`update held set n = n + 1`)
		}
		return runner.Then(rawArgs("b")).Write(insert, j.ID(), "a").Write(`select nextval('sent')`)
	})
	current := together
	both := func(ctx context.Context, j *raw) (*runner.Outcome, error) { return current(ctx, j) }
	r := start(t, pool, runner.Options{Slots: 2 * jobs}, map[string]handler{"a": both, "waits": both, "b": succeed})
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `update held set n = n`)
	is.NoErr(err)
	for range jobs - 1 {
		enqueue(t, r, rawArgs("a"))
	}
	waits := enqueue(t, r, rawArgs("waits")) // the highest ID places this job last in the group
	pgtest.Wait(t, "the other jobs have finished, and one job waits alone", func() bool {
		return queryOne[int](t, pool, `select count(*) from mine`) == jobs-1 && queryOne[int](t, pool, `select count(*) from trapeze.live`) == 1 &&
			queryOne[int](t, pool, `select last_value from waited`) == 2
	})
	is.Equal(get(t, r, waits).State, job.Running)
	is.True(queryOne[int](t, pool, `select last_value from sent`) <= 2*(jobs-1)) // no statement was sent more than twice
	is.NoErr(tx.Rollback(t.Context()))
	is.Equal(waitEnded(t, r, waits).State, job.Succeeded)
	is.Equal(queryOne[int](t, pool, `select n from held`), 1)

	// Later, jobs of the kind that waited share no commit; the others still do.
	current = endTogether(2*jobs, func(j *raw) *runner.Outcome { return runner.Done(nil).Write(insert, j.ID(), "later "+j.Kind()) })
	for range jobs {
		enqueue(t, r, rawArgs("waits"))
		enqueue(t, r, rawArgs("a"))
	}
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(distinct xmin::text) from mine where kind = 'later waits'`), jobs)
	is.Equal(queryOne[int](t, pool, `select count(*) from mine where kind = 'later a'`), jobs)
	is.True(queryOne[int](t, pool, `select count(distinct xmin::text) from mine where kind = 'later a'`) < jobs)
	checkHistory(t, pool, r)
}

// While a group waits, one of its jobs loses its claim and another is cancelled. Neither job writes anything.
func TestLostOrCancelledGroupMember(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint)`)
	const jobs = 6
	wait, open := latch(t)
	r := start(t, pool, runner.Options{Slots: jobs, PollInterval: 200 * time.Millisecond}, map[string]handler{"a": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		<-wait
		return runner.Then(rawArgs("b")).Write(`insert into mine values ($1)`, j.ID()), nil
	}, "b": succeed})
	var ids []int64
	for range jobs {
		ids = append(ids, enqueueStarted(t, r, rawArgs("a")))
	}
	exec(t, pool, `update trapeze.live set cancel_requested = true where id = $1`, ids[0]) // no heartbeat has reported the cancellation yet
	exec(t, pool, `update trapeze.live set state = 'pending', pod = null, claimed_at = null where id = $1`, ids[1])
	open()
	is.Equal(waitEnded(t, r, ids[0]).State, job.Cancelled)
	for _, id := range ids[2:] {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	pgtest.Wait(t, "the job that lost its claim runs again", func() bool { return get(t, r, ids[1]).State == job.Succeeded })
	is.Equal(column[int64](t, pool, `select job from mine order by job`), ids[1:])
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'b'`), jobs-1)
}

// Jobs run on two pods amid cancellations, errors, deadlocks, and lost connections and replies. Other pods are cut off for most of the test
// and reconnect at the end. A job that succeeded or fanned out must have written each of its rows exactly once. Any other job may have
// written its first page, but only once.
func TestSharedCommitsUnderRandomFailures(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 2))
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return dice.IntN(n)
	}
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	exec(t, direct, `create table mine (job bigint, no int); create table counts (id int primary key, n int); insert into counts select generate_series(0, 3), 0`)
	insert, count := `insert into mine values ($1, $2)`, `update counts set n = n + 1 where id = $1`
	var beat atomic.Pointer[chan struct{}] // closed at each tick, so that many jobs finish together whether the machine is fast or slow
	first := make(chan struct{})
	beat.Store(&first)
	go func() {
		for ticker := time.NewTicker(30 * time.Millisecond); t.Context().Err() == nil; <-ticker.C {
			next := make(chan struct{})
			close(*beat.Swap(&next))
		}
	}()
	write := func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		select {
		case <-*beat.Load():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		page, err := last(j)
		if err == nil && page == 0 {
			b := &pgx.Batch{}
			b.Queue(insert, j.ID(), 0)
			err = j.Write(ctx, 1, b)
		}
		if err != nil {
			return nil, err
		}
		var o *runner.Outcome
		switch roll(6) {
		case 0:
			return nil, errors.New("bad luck")
		case 1, 2:
			o = runner.Done(nil)
		case 3:
			o = runner.FanOut(rawArgs("good"))
		default:
			if o = runner.Then(rawArgs("good")); j.Step() > 3 {
				o = runner.Done(nil)
			}
		}
		o.Write(insert, j.ID(), 1)
		switch what := roll(8); {
		case what > 0 && j.Kind() == "good":
			o.Write(insert, j.ID(), 2)
		case what == 0:
			o.InTx(func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, insert, j.ID(), 2); return err })
		case what == 1:
			o.Write(insert, j.ID(), 2).Write(`select 1/0`)
		case what <= 3: // updates two rows in random order, so that some groups deadlock
			o.Write(count, roll(4)).Write(count, roll(4)).Write(insert, j.ID(), 2)
		default:
			o.Write(insert, j.ID(), 2)
		}
		return o, nil
	}
	// After a statement is refused or waits for a lock, the pod commits jobs of that kind individually for a minute. Each round therefore
	// uses a different bad kind.
	handlers := map[string]handler{"good": write}
	for round := range faultRounds {
		handlers[fmt.Sprint("bad", round)] = write
	}
	o := named("a")
	o.Slots, o.PollInterval, o.LeaseDuration, o.HeartbeatInterval = 20, 200*time.Millisecond, 6*time.Second, time.Second
	start(t, pool, o, handlers, runner.Retry(6, soon))
	o.PodName = "b"
	b := start(t, direct, o, handlers, runner.Retry(6, soon))
	var cables []*faultnet.Proxy
	mortal := func() { // starts a pod that is cut off later and reconnects only at the end
		o.PodName = fmt.Sprintf("mortal%d", len(cables))
		cable, pool := cable(t, url)
		cables = append(cables, cable)
		start(t, pool, o, handlers, runner.Retry(6, soon))
	}
	mortal()
	for round := range faultRounds {
		switch round % 5 {
		case 1:
			proxy.Reset()
		case 2:
			_, disarm := proxy.CutReply("insert into mine")
			defer disarm()
		case 3:
			exec(t, direct, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()`)
		case 4:
			dies := cables[len(cables)-1]
			dies.Blackhole() // the pod's requests no longer arrive
			dies.Reset()
			mortal()
		}
		args := make([]job.Args, faultJobs)
		for i := range args {
			args[i] = rawArgs([]string{"good", "good", fmt.Sprint("bad", round)}[roll(3)])
		}
		made, err := b.EnqueueMany(t.Context(), args)
		for errors.Is(err, job.ErrOutcomeUnknown) || err != nil && strings.Contains(err.Error(), "57P01") {
			made, err = b.EnqueueMany(t.Context(), args)
		}
		is.NoErr(err)
		for _, id := range made {
			if roll(10) == 0 {
				_, _ = b.Admin("dice").Cancel(t.Context(), id)
			}
		}
	}
	open := func() int {
		return queryOne[int](t, direct, `select count(*) from trapeze.jobs j where not exists (select 1 from trapeze.done d where d.id = j.id)`)
	}
	pgtest.WaitFor(t, 2*time.Minute, "the jobs of the cut-off pods run elsewhere", func() bool {
		return open() == 0 && queryOne[int](t, direct, `select count(*) from trapeze.pods where closed_at is not null`) >= len(cables)-1
	})
	for _, c := range cables {
		c.Pass()
	}
	pgtest.Wait(t, "the cut-off pods reconnect and no job is open", func() bool {
		return queryOne[int](t, direct, `select count(*) from trapeze.pods where closed_at is null and lease_until > now()`) == len(cables)+2 && open() == 0
	})
	wrong := column[string](t, direct, `select format('%s %s %s: %s and %s', id, state, reason, pages, rows) from (
		select d.id, d.state, d.reason, count(*) filter (where no = 0) as pages, count(*) filter (where no > 0) as rows, count(no) - count(distinct no) as doubles,
			d.state = 'succeeded' or exists (select from trapeze.jobs c where c.group_id = d.id) as written
		from trapeze.done d left join mine m on m.job = d.id group by d.id, d.state, d.reason) all_jobs
		where rows <> case when written then 2 else 0 end or pages = 0 and written or doubles > 0`)
	if len(wrong) > 0 {
		t.Errorf("jobs with wrong pages or rows: %q", wrong)
	}
	shared := queryOne[int](t, direct, `select coalesce(sum(jobs), 0) from (select count(distinct job) as jobs from mine where no > 0 group by xmin::text) s where jobs > 1`)
	t.Logf("%d of %d jobs shared a commit", shared, queryOne[int](t, direct, `select count(distinct job) from mine`))
	is.True(shared > faultJobs/2) // usually several times as many; on a slow machine, one lock wait of a good job makes its kind commit individually for a minute
	is.True(queryOne[int](t, direct, `select count(*) from trapeze.done where state = 'succeeded'`) > 3*faultJobs)
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.subjects where state = 'held'`), 0)
	checkHistory(t, direct, b)
}
