package runner_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRunningStateBeforeHandlerStarts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"look": waitOn(wait)})
	id := enqueueStarted(t, r, rawArgs("look")) // another connection sees the state while the handler is running
	pgtest.Wait(t, "no transaction stays open while the handler is running", func() bool {
		return queryOne[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`) == 0
	})
	open()
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Attempt, 1)
	is.Equal(eventsOf(t, r, id), []string{"job.enqueued", "job.claimed", "job.succeeded"}) // every transition is recorded
	is.True(!j.FinishedAt.Before(*j.StartedAt))
}

func TestChildReadsParentWrites(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table facts (n int)`)
	const rounds = 50
	missing := make(chan string, rounds)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"write": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("read", string(j.Args.JSON))).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into facts values ($1::text::int)`, string(j.Args.JSON))
				return err
			}), nil
		},
		"read": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var parent string
			var rows int
			err := pool.QueryRow(ctx, `select (select count(*) from facts where n = $1::text::int),
				(select d.state from trapeze.done d join trapeze.jobs j on j.parent_id = d.id where j.id = $2)`,
				string(j.Args.JSON), j.ID()).Scan(&rows, &parent)
			if err != nil || rows != 1 || parent != "succeeded" {
				missing <- fmt.Sprint(string(j.Args.JSON), rows, parent, err)
			}
			return nil, nil
		},
	})
	for n := range rounds {
		enqueue(t, r, rawArgs("write", fmt.Sprint(n)))
	}
	quiet(t, pool)
	is.Equal(len(missing), 0)                                                                                 // every child saw its parent's rows and end
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), 2*rounds) // each job ran once
	checkHistory(t, pool, r)
}

func TestChainStepOptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name) values ('slow')`)
	seen := make(chan string, 3)
	step := func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		var before string
		_ = j.PreviousResult(ctx, &before)
		seen <- fmt.Sprintf("%s step %d in %s about %s at %d after %q", j.Kind(), j.Step(), j.Lane(), j.Subject(), j.Priority(), before)
		return runner.Done("the result of " + j.Kind()), nil
	}
	r := start(t, pool, runner.Options{}, map[string]handler{"a": step, "b": step, "c": step})
	id := enqueue(t, r, runner.Chain(rawArgs("a"), runner.With(runner.With(rawArgs("b"), runner.Lane("slow"), runner.Priority(9)), runner.Subject("other"), runner.Priority(3)), rawArgs("c")),
		runner.Subject("s"), runner.Priority(20))
	is.Equal(<-seen, `a step 0 in default about s at 20 after ""`)
	is.Equal(<-seen, `b step 1 in slow about other at 3 after "the result of a"`) // the step's own options apply; the outermost one wins
	is.Equal(<-seen, `c step 2 in slow about other at 3 after "the result of b"`) // the step inherits all other settings from its parent
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where pipeline_id = $1`, id), 3) // all steps belong to one pipeline
}

// A step with an unknown lane is rejected for that reason, even if the timeout expires while the step is being checked, because the handler
// has already returned.
func TestInvalidNextStepAfterTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	contexts := make(chan context.Context, 1)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	r := start(t, pool, runner.Options{LeaseDuration: time.Minute}, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		if _, err := tx.Exec(ctx, `lock table trapeze.lanes in access exclusive mode`); err != nil { // blocks the check on the step's lane
			return nil, err
		}
		contexts <- ctx
		return runner.Then(rawArgs("k"), runner.Lane("nowhere")), nil
	}}, runner.Timeout(time.Second))
	id := enqueue(t, r, rawArgs("k"))
	<-(<-contexts).Done()
	is.NoErr(tx.Rollback(t.Context()))
	j := waitEnded(t, r, id)
	is.Equal(*j.Reason, job.ReasonError)
	is.True(strings.Contains(message(j), "unknown lane"))
}

func TestChainOnSameSubject(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var mu sync.Mutex
	running, most, left := 0, 0, 60
	r := start(t, pool, runner.Options{Slots: 8}, map[string]handler{"again": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		mu.Lock()
		defer func() { running--; mu.Unlock() }()
		running++
		most = max(most, running)
		if left--; left > 0 {
			return runner.Then(rawArgs("again")), nil
		}
		return nil, nil
	}})
	for range 3 {
		enqueue(t, r, rawArgs("again"), runner.Subject("same"))
	}
	quiet(t, pool)
	is.Equal(most, 1)                                                            // the three chains share a subject, so only one job runs at a time
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.subjects`), 1) // the row refers to the latest run
	is.Equal(queryOne[string](t, pool, `select state from trapeze.subjects`), "free")
	checkHistory(t, pool, r)
}

func TestInvalidNextStep(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	then := func(args job.Args, options ...runner.EnqueueOption) handler {
		return func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(args, options...), nil }
	}
	handlers := map[string]handler{
		"unknown-kind": then(rawArgs("nobody")),
		"unknown-lane": then(rawArgs("fine"), runner.Lane("nowhere")),
		"no-args":      then(nil),
		"bad-priority": then(rawArgs("fine"), runner.Priority(1000)),
		"with-a-key":   then(rawArgs("fine"), runner.Unique("k", runner.WhileActive)),
		"broken-args":  then(rawArgs("fine", "{")),
		"panics":       then((*pointed)(nil)),
		"fine":         succeed,
	}
	r := start(t, pool, runner.Options{MaxAttempts: 5}, handlers)
	for kind, want := range map[string]string{
		"unknown-kind": `unknown kind`, "unknown-lane": `unknown lane`, "no-args": "no args", "bad-priority": "priority 1000",
		"with-a-key": "keys are allowed only on submissions", "broken-args": "invalid args", "panics": "panic",
	} {
		t.Run(kind, func(t *testing.T) {
			is := is.New(t)
			j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
			is.Equal(j.State, job.Failed) // the job fails immediately, even with attempts left
			is.Equal(j.Attempt, 1)
			is.True(strings.Contains(message(j), want))                                                         // the error states the reason
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id = $1`, j.ID), 0) // no child was inserted
		})
	}
	waitEnded(t, r, enqueue(t, r, rawArgs("fine"))) // the pod still runs other jobs
}

// pointed is an args type whose Kind method panics on a nil pointer.
type pointed struct{ name string }

func (p *pointed) Kind() string { return p.name }

func TestNextStepBehindUrgentJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var mu sync.Mutex
	var order []string
	note := func(j *raw) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, j.Kind())
	}
	plain := func(ctx context.Context, j *raw) (*runner.Outcome, error) { note(j); return nil, nil }
	r := start(t, pool, runner.Options{Slots: 1}, map[string]handler{
		"parent": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			note(j)
			return runner.Then(rawArgs("child")), nil
		},
		"child": plain, "urgent": plain, "equal": plain,
	})
	inState(t, r, enqueue(t, r, rawArgs("parent")), job.Running)
	enqueue(t, r, rawArgs("equal"))
	enqueue(t, r, rawArgs("urgent"), runner.Priority(50))
	open()
	quiet(t, pool)
	is.Equal(order, []string{"parent", "urgent", "equal", "child"}) // the child queues behind jobs that were already waiting
	order = nil
	wait2, open2 := latch(t)
	wait = wait2
	inState(t, r, enqueue(t, r, rawArgs("parent")), job.Running)
	enqueue(t, r, rawArgs("equal"))
	open2()
	quiet(t, pool)
	is.Equal(order, []string{"parent", "child", "equal"}) // at equal priority, the pipeline's next step goes first
}

func TestPollVersusFastPathChain(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	handlers := func() map[string]handler {
		step := func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var n int
			_ = j.PreviousResult(ctx, &n)
			return runner.Done(n + 1), nil
		}
		return map[string]handler{"a": step, "b": step, "c": step}
	}
	run := func(split bool) (rows []string, fast int) {
		pool := pgtest.Pool(t)
		submitter := newRunner(t, pool, runner.Options{}, handlers())
		if split {
			for _, kind := range []string{"a", "b", "c"} {
				start(t, pool, runner.Options{Kinds: []string{kind}, PollInterval: 100 * time.Millisecond, DirectURL: "off"}, handlers())
			}
		} else {
			submitter = start(t, pool, runner.Options{PollInterval: time.Hour}, handlers())
		}
		for range pathChains {
			enqueue(t, submitter, runner.Chain(rawArgs("a"), rawArgs("b"), rawArgs("c")), runner.Subject("s"))
			quiet(t, pool)
		}
		fast = queryOne[int](t, pool, `select count(*) from trapeze.job_event e join trapeze.jobs j on j.id = e.job
			where e.event = 'job.claimed' and e.fields->>'path' = 'fast' and j.step > 0`)
		list, err := pool.Query(t.Context(), `select concat_ws(' ', j.kind, j.step, j.subject, d.state, d.reason, d.result, d.attempt, d.fence, d.event_no)
			from trapeze.jobs j join trapeze.done d using (id) order by j.pipeline_id, j.step`)
		is.NoErr(err)
		rows, err = pgx.CollectRows(list, pgx.RowTo[string])
		is.NoErr(err)
		return rows, fast
	}
	byPoll, fast := run(true)
	is.Equal(fast, 0) // no step was started on insert
	byHand, fast := run(false)
	is.Equal(fast, 2*pathChains) // every step was started on insert
	is.Equal(len(byPoll), 3*pathChains)
	slices.Sort(byPoll)
	slices.Sort(byHand)
	is.Equal(byPoll, byHand) // the resulting rows are the same
}
