package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// followers returns the jobs that were submitted because a job failed. It fails the test unless they were committed together with the
// failure, each begins a new pipeline, and all are recorded in the failed job's history.
func followers(t *testing.T, pool *pgxpool.Pool, id int64) []string {
	t.Helper()
	together := queryOne[int](t, pool, `select count(*)::int from trapeze.job_event failed
		join trapeze.job_event followed on followed.job = failed.job and followed.event = 'job.followed' and followed.xid = failed.xid and followed.event_no = failed.event_no + 1
		join trapeze.job j on j.id = (followed.fields ->> 'job')::bigint and j.parent_id = failed.job and j.pipeline_id = j.id
		join trapeze.job_event made on made.job = j.id and made.event = 'job.enqueued' and made.xid = failed.xid
		where failed.job = $1 and failed.event in ('job.failed', 'job.cancelled')`, id)
	kinds := queryOne[[]string](t, pool, `select coalesce(array_agg(kind || args order by id), '{}') from trapeze.jobs where parent_id = $1 and step = 0`, id)
	if together != len(kinds) {
		t.Errorf("job %d is followed by %v, of which %d share the commit that ended it", id, kinds, together)
	}
	return kinds
}

func TestFailureSubmitsOnFailureJobs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (id int primary key)`)
	exec(t, pool, `create unique index on trapeze.jobs ((args ->> 'once')) where kind = 'taken'`)
	handlers, all := map[string]handler{"taken": succeed, "after": succeed}, failures(pool)
	for kind, f := range all {
		handlers[kind] = f.handler
	}
	r := start(t, pool, runner.Options{}, handlers, runner.Timeout(300*time.Millisecond))
	enqueue(t, r, rawArgs("taken", `{"once":"x"}`))
	for kind := range all {
		t.Run(kind, func(t *testing.T) {
			is := is.New(t)
			id := enqueue(t, r, rawArgs(kind), runner.OnFailure(rawArgs("after", `{"kg": 12.50}`)))
			is.Equal(waitEnded(t, r, id).State, job.Failed)
			is.Equal(followers(t, pool, id), []string{`after{"kg":12.50}`}) // the number is stored unchanged
		})
	}
	quiet(t, pool)
	checkHistory(t, pool, r)
}

func TestFailureJobAfterFinalAttempt(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{MaxAttempts: 2}, map[string]handler{
		"after": succeed, "waits": waitOn(wait), "ok": succeed,
		"second": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, job.RetryAfter(0, errors.New("not yet"))
			}
			return nil, nil
		},
		"never": func(context.Context, *raw) (*runner.Outcome, error) { return nil, job.RetryAfter(0, errors.New("no")) },
	})
	submit := func(kind string, o ...runner.EnqueueOption) int64 {
		return enqueue(t, r, rawArgs(kind), append(o, runner.OnFailure(rawArgs("after")))...)
	}
	for _, id := range []int64{submit("ok"), submit("second")} {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
		is.Equal(len(followers(t, pool, id)), 0)
	}
	never := submit("never")
	is.Equal(reasonOf(waitEnded(t, r, never)), job.ReasonAttemptsExhausted)
	is.Equal(len(followers(t, pool, never)), 1)

	// Only OnFailureOrCancel submits a job after a cancellation, no matter how the job is cancelled.
	operator := r.Admin("ann")
	cancel := func(id int64) error { _, err := operator.Cancel(t.Context(), id); return err }
	stop := func(id int64) error { _, err := operator.ForceCancel(t.Context(), id); return err }
	many := func(int64) error {
		_, err := operator.CancelMany(t.Context(), job.Filter{Kind: "ok", States: []job.State{job.Pending}}, false)
		return err
	}
	for name, c := range map[string]struct {
		kind string
		o    []runner.EnqueueOption
		end  func(id int64) error
	}{
		"running": {"waits", nil, cancel}, "stopped": {"waits", nil, stop}, "delayed": {"ok", []runner.EnqueueOption{runner.Delay(time.Hour)}, cancel},
		"many":       {"ok", []runner.EnqueueOption{runner.Delay(time.Hour)}, many},
		"unapproved": {"ok", []runner.EnqueueOption{runner.NeedsApproval()}, cancel},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			for option, want := range map[runner.FailureOption]int{runner.OnFailure(kindOnly("after")): 0, runner.OnFailureOrCancel(kindOnly("after")): 1} {
				id := enqueue(t, r, rawArgs(c.kind), append(c.o, option)...)
				if c.kind == "waits" {
					inState(t, r, id, job.Running)
				}
				is.NoErr(c.end(id))
				is.Equal(waitEnded(t, r, id).State, job.Cancelled)
				is.Equal(len(followers(t, pool, id)), want)
			}
		})
	}
	open()
	quiet(t, pool)
}

// kindOnly is a comparable job type.
type kindOnly string

func (k kindOnly) Kind() string { return string(k) }

// trail records the jobs that ran, in order.
type trail struct {
	mu   sync.Mutex
	seen []string
}

func (n *trail) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = append(n.seen, fmt.Sprintf(format, args...))
}

func (n *trail) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.seen, " ")
}

func (n *trail) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = nil
}

// saga returns the handlers of a saga: steps that succeed and set a compensation, a step that fails, and the compensations.
func saga(n *trail) map[string]handler {
	step := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		n.note("%s", j.Kind())
		return runner.Done(nil).OnFailureOrCancel(rawArgs("undo", `"`+j.Kind()+`"`)), nil
	}
	return map[string]handler{
		"charge": step, "reserve": step, "label": step,
		"ship": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			n.note("ship")
			return nil, job.Permanent(errors.New("no carrier"))
		},
		"undo": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			f, err := j.Failure(ctx)
			if err != nil {
				return nil, err
			}
			n.note("undo%s(%s %s)", j.Args.JSON, f.Kind, f.Reason)
			return nil, nil
		},
		"own": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			f, err := j.Failure(ctx)
			n.note("own(%s: %s)", f.Kind, f.Error)
			return nil, err
		},
	}
}

func TestSagaUndoOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var n trail
	r := start(t, pool, runner.Options{}, saga(&n))
	id := enqueue(t, r, runner.Chain(rawArgs("charge"), runner.With(rawArgs("reserve"), runner.OnFailure(rawArgs("own"))), rawArgs("label"), runner.With(rawArgs("ship"), runner.OnFailure(rawArgs("own")))), runner.Subject("order 7"))
	is.Equal(waitPipeline(t, pool, id), "failed") // the compensations do not change the status
	quiet(t, pool)
	is.Equal(n.String(), `charge reserve label ship own(ship: no carrier) undo"label"(ship error) undo"reserve"(ship error) undo"charge"(ship error)`)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where subject <> 'order 7'`), 0)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id is not null and step = 0`), 1) // all compensations run in a single pipeline
	checkHistory(t, pool, r)
}

func TestCompensationOfSucceededPipeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var n trail
	r := start(t, pool, runner.Options{}, saga(&n))
	id := enqueue(t, r, runner.Chain(rawArgs("charge"), runner.With(rawArgs("reserve"), runner.OnFailure(rawArgs("own"))), rawArgs("label")))
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	quiet(t, pool)
	is.Equal(n.String(), "charge reserve label")
	lone := enqueue(t, r, rawArgs("charge"), runner.OnFailure(rawArgs("own")))
	is.Equal(waitEnded(t, r, lone).State, job.Succeeded)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.pipelines where id = $1`, lone), 0) // a single job is not listed as a pipeline
}

func TestCancelledPipelineFailureJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var n trail
	handlers := saga(&n)
	wait, open := latch(t)
	handlers["slow"] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-wait // ignores the handler's context and succeeds
		n.note("slow")
		return runner.Done(nil).OnFailure(rawArgs("undo", `"never"`)).OnFailureOrCancel(rawArgs("undo", `"slow"`)), nil
	}
	r := start(t, pool, runner.Options{}, handlers)
	id := enqueue(t, r, runner.Chain(rawArgs("charge"), runner.With(rawArgs("slow"), runner.OnFailure(rawArgs("own"))), rawArgs("ship")))
	pgtest.Wait(t, "the second step is running", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.live where kind = 'slow' and state = 'running'`) == 1
	})
	_, err := r.Admin("ann").CancelPipeline(t.Context(), id)
	is.NoErr(err)
	open()
	is.Equal(waitPipeline(t, pool, id), "cancelled")
	quiet(t, pool)
	is.Equal(n.String(), `charge slow undo"slow"(slow cancelled) undo"charge"(slow cancelled)`) // the cancelled step is also undone
}

// When a branch fails, the compensations for the branch, the fan-out and all earlier steps run.
func TestAFanOutIsUndone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var n trail
	handlers := saga(&n)
	handlers["fan"] = func(_ context.Context, j *raw) (*runner.Outcome, error) {
		return runner.FanOut(runner.Chain(rawArgs("label"), rawArgs("ship")), runner.With(rawArgs("ship"), runner.OnFailure(rawArgs("undo", `"branch"`)))).
			Join(rawArgs("own")).OnFailureOrCancel(rawArgs("undo", `"fan"`)), nil
	}
	r := start(t, pool, runner.Options{}, handlers)
	is := is.New(t)
	id := enqueue(t, r, runner.Chain(rawArgs("charge"), rawArgs("fan"), rawArgs("reserve")))
	is.Equal(waitPipeline(t, pool, id), "failed")
	quiet(t, pool)
	said := n.String()
	fan, charge := strings.Index(said, `undo"fan"(fan children_failed)`), strings.Index(said, `undo"charge"(fan children_failed)`)
	is.True(strings.Contains(said, `undo"branch"(ship error)`) && strings.Contains(said, `undo"label"(ship error)`))
	is.True(fan >= 0 && fan < charge) // the latest step is undone first; the branches are undone concurrently
	is.True(!strings.Contains(said, "reserve") && !strings.Contains(said, "own"))
}

// A cancelled pipeline undoes a branch's completed steps, even if the branch is still running. The join does not run.
func TestAbortCompensatesSucceededBranches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var n trail
	handlers := saga(&n)
	wait, _ := latch(t)
	handlers["stays"] = waitOn(wait)
	handlers["fan"] = func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.FanOut(runner.Chain(rawArgs("label"), rawArgs("stays")), runner.With(rawArgs("stays"), runner.OnFailure(rawArgs("undo", `"never"`)))).
			Join(rawArgs("own")).OnFailureOrCancel(rawArgs("undo", `"fan"`)), nil
	}
	r := start(t, pool, runner.Options{}, handlers)
	id := enqueue(t, r, runner.Chain(rawArgs("charge"), rawArgs("fan"), rawArgs("ship")))
	pgtest.Wait(t, "both branches have reached a step that keeps running", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.live where kind = 'stays' and state = 'running'`) == 2
	})
	_, err := r.Admin("ann").CancelPipeline(t.Context(), id)
	is.NoErr(err)
	is.Equal(waitPipeline(t, pool, id), "cancelled")
	quiet(t, pool)
	done := strings.Fields(strings.NewReplacer(" cancelled)", ")", " pipeline_cancelled)", ")").Replace(n.String()))
	slices.Sort(done)
	is.Equal(done, []string{"charge", "label", `undo"charge"(fan)`, `undo"fan"(fan)`, `undo"label"(stays)`})
	checkHistory(t, pool, r)
}

func TestFailureJobAfterPriorityChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{
		"k": func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") }, "after": succeed,
	})
	id := enqueue(t, r, rawArgs("k"), runner.OnFailure(rawArgs("after")))
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), id, 42, false))
	run(t, r)
	is.Equal(waitEnded(t, r, id).State, job.Failed)
	is.Equal(len(followers(t, pool, id)), 1)
	is.Equal(queryOne[int](t, pool, `select priority from trapeze.job where parent_id = $1`, id), 42) // the new job inherits the priority
}

func TestStepEndsOrReplacesChain(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		outcome func() *runner.Outcome
		want    string
	}{
		"ended":             {func() *runner.Outcome { return runner.EndChain("enough") }, "decide"},
		"replaced":          {func() *runner.Outcome { return runner.Then(rawArgs("refund")).EndChain() }, "decide refund"},
		"not replaced":      {func() *runner.Outcome { return runner.Then(rawArgs("refund")) }, "decide refund ship"},
		"after its fan-out": {func() *runner.Outcome { return runner.FanOut(rawArgs("refund")).Join(rawArgs("joined")).EndChain() }, "decide refund joined"},
		"with its writes": {func() *runner.Outcome {
			return runner.EndChain(nil).InTx(func(context.Context, pgx.Tx) error { return nil })
		}, "decide"},
	}
	var n trail
	handlers := map[string]handler{}
	for name, c := range cases {
		handlers[kindOf(name)] = func(context.Context, *raw) (*runner.Outcome, error) { n.note("decide"); return c.outcome(), nil }
	}
	for _, kind := range []string{"refund", "ship", "joined"} {
		handlers[kind] = func(context.Context, *raw) (*runner.Outcome, error) { n.note("%s", kind); return nil, nil }
	}
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, handlers)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			n.clear()
			id := enqueue(t, r, runner.Chain(rawArgs(kindOf(name)), rawArgs("ship")))
			is.Equal(waitPipeline(t, pool, id), "succeeded")
			quiet(t, pool)
			is.Equal(n.String(), c.want)
		})
	}
}

func TestUnconditionalJoinBranchOutcomes(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		fan  func() *runner.Outcome
		want string
	}{
		"all failed":  {func() *runner.Outcome { return runner.FanOut(rawArgs("bad"), rawArgs("bad")) }, "failed:no failed:no"},
		"some failed": {func() *runner.Outcome { return runner.FanOut(rawArgs("bad"), rawArgs("good")) }, "failed:no succeeded:"},
		"a part":      {func() *runner.Outcome { return runner.Deferred(2).FailFast() }, "failed:failed: no"},
		"fail fast":   {func() *runner.Outcome { return runner.FanOut(rawArgs("bad"), rawArgs("stays")).FailFast() }, "failed:no cancelled:cancelled by an operator"},
	}
	var n trail
	wait, _ := latch(t)
	tokens := make(chan string, 1)
	handlers := map[string]handler{
		"bad":  func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") },
		"good": succeed, "stays": waitOn(wait),
		"join": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			for b, err := range j.Branches(ctx) {
				if err != nil {
					return nil, err
				}
				n.note("%s:%s", b.State, b.Error)
			}
			return nil, nil
		},
		"next": succeed,
	}
	for name, c := range cases {
		handlers[kindOf(name)] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			if tokens <- token; err != nil {
				return nil, err
			}
			return c.fan().Join(rawArgs("join"), runner.Always), nil
		}
	}
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, handlers)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			n.clear()
			id := enqueue(t, r, runner.Chain(rawArgs(kindOf(name)), rawArgs("next")))
			if token := <-tokens; name == "a part" {
				is.NoErr(r.Complete(t.Context(), id, token, nil, runner.PartFailed(errors.New("no"))))
			}
			is.Equal(waitPipeline(t, pool, id), "partial")
			quiet(t, pool)
			is.Equal(n.String(), c.want)
			fan := get(t, r, id)
			is.Equal(fan.State, job.Succeeded)
			is.Equal(*fan.Outcome, job.Warning)
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'next' and pipeline_id = $1`, id), 1) // the chain continues
		})
	}
}

func TestFailureJobOfLatestDeclaration(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	fails := map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") }}
	for _, c := range []struct {
		o    []runner.HandleOption
		want []string
	}{
		{[]runner.HandleOption{runner.OnFailure(runner.Raw{Name: "first"})}, []string{"first{}"}},
		{[]runner.HandleOption{runner.OnFailure(runner.With(rawArgs("second"), runner.Lane("default")))}, []string{"second{}"}},
		{nil, []string{}},
	} {
		r := newRunner(t, pool, runner.Options{}, map[string]handler{"first": succeed, "second": succeed})
		runner.HandleRaw(r, "k", fails["k"], c.o...)
		stop := run(t, r)
		id := enqueue(t, r, rawArgs("k"))
		is.Equal(waitEnded(t, r, id).State, job.Failed)
		is.Equal(followers(t, pool, id), c.want)
		quiet(t, pool)
		stop()
	}
}

func TestInvalidFailureJobs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"k": succeed,
		"later": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Snooze(0, "").OnFailure(rawArgs("k")), nil
		},
		"odd": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).OnFailure(rawArgs("unknown")), nil
		},
		"fan": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("k"), runner.Always), nil
		},
	})
	for name, c := range map[string]struct {
		args    job.Args
		options []runner.EnqueueOption
		err     error
		says    string
	}{
		"nothing":           {rawArgs("k"), []runner.EnqueueOption{runner.OnFailure(nil)}, job.ErrInvalidArgs, "(on failure)"},
		"a delay":           {rawArgs("k"), []runner.EnqueueOption{runner.OnFailure(runner.With(rawArgs("k"), runner.Delay(1)))}, job.ErrInvalid, "a step accepts"},
		"an unknown kind":   {rawArgs("k"), []runner.EnqueueOption{runner.OnFailure(rawArgs("x"))}, job.ErrUnknownKind, `"x"`},
		"one of its own":    {rawArgs("k"), []runner.EnqueueOption{runner.OnFailure(runner.With(rawArgs("k"), runner.OnFailure(rawArgs("k"))))}, job.ErrInvalid, "its own failure step"},
		"always, no join":   {rawArgs("k"), []runner.EnqueueOption{runner.Always}, job.ErrInvalid, "Always"},
		"always in a chain": {runner.Chain(rawArgs("k"), runner.With(rawArgs("k"), runner.Always)), nil, job.ErrInvalid, "Always"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := r.Enqueue(t.Context(), c.args, c.options...)
			is.True(errors.Is(err, c.err))
			is.True(strings.Contains(err.Error(), c.says))
		})
	}
	is := is.New(t)
	scheduled := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	scheduled.DeclareSchedule("s", "@daily", rawArgs("k"), runner.OnFailure(rawArgs("k")))
	is.True(errors.Is(scheduled.Run(t.Context()), job.ErrInvalidSchedule))
	circular := newRunner(t, pool, runner.Options{}, nil)
	runner.HandleRaw(circular, "k", succeed, runner.OnFailure(rawArgs("k")))
	runner.HandleRaw(circular, "a", succeed, runner.OnFailure(runner.Chain(rawArgs("x"), rawArgs("b"))))
	runner.HandleRaw(circular, "b", succeed, runner.OnFailure(rawArgs("c")))
	runner.HandleRaw(circular, "c", succeed, runner.OnFailure(rawArgs("a"))) // a cycle of three kinds
	says := circular.Run(t.Context()).Error()
	is.True(strings.Contains(says, `kind "k": it is its own OnFailure kind`) && strings.Contains(says, `kind "c": it is its own OnFailure kind`))
	for _, kind := range []string{"later", "odd", "fan"} {
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs(kind))).State, job.Failed)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id is not null`), 0)
	j := get(t, r, enqueue(t, r, rawArgs("k")))
	is.Equal(j.State == job.Failed, false)
	far, err := runner.NewRemote(runner.RemoteOptions{})
	is.NoErr(err)
	defer far.Close()
	runner.HandleRaw(far, "k", succeed, runner.OnFailure(rawArgs("after")))
	is.True(strings.Contains(inside.Of(far).Check().Error(), "remote worker"))
}

func TestFailureReadByOrdinaryJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	said := make(chan error, 1)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		_, err := j.Failure(ctx)
		said <- err
		return nil, nil
	}})
	enqueue(t, r, rawArgs("k"))
	is.True(errors.Is(<-said, job.ErrNotFound))
}
