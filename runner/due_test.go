package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// silent keeps a pod from polling and from reading due times with heartbeats during a test.
var silent = runner.Options{Slots: 4, HeartbeatInterval: time.Minute, LeaseDuration: 5 * time.Minute, PollInterval: time.Hour}

// A pod that parks a job wakes up when the job becomes due, without waiting for a heartbeat or a poll.
func TestParkedJobDue(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Millisecond
	again := func(what func() (*runner.Outcome, error)) handler {
		return func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 && j.Snoozes() == 0 {
				return what()
			}
			return nil, nil
		}
	}
	pool := pgtest.Pool(t)
	r := start(t, pool, silent, map[string]handler{
		"retried": again(func() (*runner.Outcome, error) { return nil, runner.RetryAfter(soon, errors.New("once")) }),
		"snoozed": again(func() (*runner.Outcome, error) { return runner.Snooze(soon, "once"), nil }),
		"delayed": succeed,
		"first": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(runner.With(rawArgs("delayed"), runner.Delay(soon))), nil
		},
	}, runner.Retry(3))
	for _, kind := range []string{"retried", "snoozed", "delayed", "first"} {
		t.Run(kind, func(t *testing.T) {
			is := is.New(t)
			began := time.Now()
			id := enqueue(t, r, rawArgs(kind))
			if kind == "delayed" {
				id = enqueue(t, r, rawArgs(kind), runner.Delay(soon))
			}
			is.Equal(waitEnded(t, r, id).State, job.Succeeded)
			if kind == "first" {
				is.Equal(waitPipeline(t, pool, id), "succeeded")
			}
			is.True(time.Since(began) < 20*time.Second)
		})
	}
}

// A pod runs one isolated job at a time. At its end, the pod claims the next one, without waiting for a heartbeat or a poll.
func TestNextIsolatedJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, silent, map[string]handler{"k": succeed})
	ids := []int64{enqueue(t, r, rawArgs("k")), enqueue(t, r, rawArgs("k")), enqueue(t, r, rawArgs("k"))}
	exec(t, pool, `update trapeze.live set crashes = 2, isolated = true`)
	began := time.Now()
	run(t, r)
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.True(time.Since(began) < 20*time.Second)
}

// The pipeline of a join that fans out again must not end as succeeded although a child of the first fan-out failed.
func TestFailuresBeforeSecondFanOut(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"root": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("good"), rawArgs("bad")).Join(rawArgs("again")), nil
		},
		"again": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("good"), rawArgs("good")).Join(rawArgs("last")), nil
		},
		"good": succeed, "last": succeed, "bad": failWith(errors.New("bad luck")),
	})
	is.Equal(waitPipeline(t, pool, enqueue(t, r, rawArgs("root"))), "partial")
	is.True(queryOne[bool](t, pool, `select impaired from trapeze.jobs where kind = 'last'`))
}

// The pod that ends the last child starts the join itself, without waiting until a heartbeat reports the fan-out.
func TestJoinStartWithoutHeartbeat(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, silent, map[string]handler{
		"root": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child"), rawArgs("child")).Join(rawArgs("join")), nil
		},
		"child": succeed, "join": succeed,
	})
	began := time.Now()
	is.Equal(waitPipeline(t, pool, enqueue(t, r, rawArgs("root"))), "succeeded")
	is.True(time.Since(began) < 20*time.Second)
}

// A stopping pod hands a job back. An idle pod is notified and starts it, although it does not poll.
func TestHandedBackJobStartsElsewhere(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	o := silent
	o.ShutdownGrace = time.Millisecond
	a := newRunner(t, pgtest.Connect(t, url), o, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	stop, done := runInBackground(t, a)
	id := enqueueStarted(t, a, rawArgs("k"))
	b := start(t, pgtest.Connect(t, url), silent, map[string]handler{"k": succeed})
	began := time.Now()
	stop()
	is.NoErr(<-done)
	is.Equal(waitEnded(t, b, id).State, job.Succeeded)
	is.True(time.Since(began) < 20*time.Second)
}

// The reply to the write that parks a job is lost. The pod reads it back, reports the retry, and starts the job when it is due.
func TestLostReplyToRetry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	proxy, pool := cable(t, pgtest.URL(t))
	var retried ends
	o := silent
	o.OnRetry = retried.add
	r := start(t, pool, o, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Attempt() > 1 {
			return nil, nil
		}
		// The second attempt must not start before the read-back, because the pod could then not know how the first one ended.
		proxy.CutReply("'job.retried' else")
		return nil, runner.RetryAfter(time.Second, errors.New("once"))
	}}, runner.Retry(3))
	id := enqueue(t, r, rawArgs("k"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	retried.wait(t, id)
}

// A pod may promote or recover jobs that it has no handler for. It notifies the pods that have one, although they do not poll.
func TestWakeUpForOtherKinds(t *testing.T) {
	t.Parallel()
	t.Run("a promoted job", func(t *testing.T) {
		t.Parallel()
		is := is.New(t)
		url := pgtest.URL(t)
		a := start(t, pgtest.Connect(t, url), silent, map[string]handler{"a": succeed})
		b := start(t, pgtest.Connect(t, url), silent, map[string]handler{"b": succeed})
		began := time.Now()
		id := enqueue(t, a, rawArgs("b"), runner.AllowUnregistered(), runner.Delay(time.Second))
		is.Equal(waitEnded(t, b, id).State, job.Succeeded)
		is.True(time.Since(began) < 20*time.Second)
	})
	t.Run("a recovered job", func(t *testing.T) {
		t.Parallel()
		is := is.New(t)
		url := pgtest.URL(t)
		pool := pgtest.Connect(t, url)
		b := start(t, pgtest.Connect(t, url), silent, map[string]handler{"b": succeed})
		exec(t, pool, `insert into trapeze.pods (id, name, version, kinds, slots, limits, lease_until)
			select '00000000-0000-4000-8000-000000000001', 'dead', version, kinds, slots, limits, now() - interval '1 second' from trapeze.pods`)
		other := newRunner(t, pool, silent, nil)
		id, locked := enqueue(t, other, rawArgs("dead"), runner.AllowUnregistered()), enqueue(t, other, rawArgs("dead"), runner.AllowUnregistered())
		exec(t, pool, `update trapeze.live set state = 'running', kind = 'b', fence = 1, attempt = 1, claimed_at = now(), started_at = now(),
			pod = '00000000-0000-4000-8000-000000000001'`)
		exec(t, pool, `update trapeze.jobs set kind = 'b'`)
		tx, err := pool.Begin(t.Context())
		is.NoErr(err)
		_, err = tx.Exec(t.Context(), `select from trapeze.live where id = $1 for update`, locked)
		is.NoErr(err)
		o := silent
		o.HeartbeatInterval = 100 * time.Millisecond
		began := time.Now()
		start(t, pgtest.Connect(t, url), o, map[string]handler{"a": succeed})
		is.Equal(waitEnded(t, b, id).State, job.Succeeded)
		is.NoErr(tx.Rollback(t.Context()))
		is.Equal(waitEnded(t, b, locked).State, job.Succeeded) // a job whose row is locked is recovered later
		is.True(time.Since(began) < 20*time.Second)
	})
}

func TestWaitTimeoutJobState(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": succeed})
	text := podtest.State(t, r, enqueue(t, r, rawArgs("elsewhere"), runner.AllowUnregistered()))
	for _, part := range []string{"is pending", "job.enqueued", "no_handler"} {
		is.True(strings.Contains(text, part))
	}
}

// A pod that runs an isolated job cannot claim another one. When it makes one pending, another pod claims it, without waiting for a poll.
func TestIsolatedJobDueOnBusyPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	release := make(chan struct{})
	busy := newRunner(t, pool, silent, map[string]handler{"k": waitOn(release)})
	first := enqueue(t, busy, rawArgs("k"))
	exec(t, pool, `update trapeze.live set crashes = 2, isolated = true`)
	run(t, busy)
	pgtest.Wait(t, "the isolated job runs", func() bool {
		return queryOne[bool](t, pool, `select state = 'running' from trapeze.live where id = $1`, first)
	})
	idle := newRunner(t, pool, silent, map[string]handler{"k": succeed})
	run(t, idle)
	second := enqueue(t, busy, rawArgs("k"), runner.Delay(2*time.Second))
	exec(t, pool, `update trapeze.parked set crashes = 2, isolated = true`)
	is.Equal(waitEnded(t, idle, second).State, job.Succeeded)
	close(release)
}

// If a claim fills a lane up to the lane's limit, and another lane for which there was no slot has a job, the pod's free slot goes to that job.
// The lanes take turns, so each round begins with another one.
func TestClaimContinuesBehindFullLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots_per_pod) values ('a', 1), ('b', null), ('c', null), ('d', null)`)
	release := make(chan struct{})
	options := silent
	options.Slots = 2
	r := start(t, pool, options, map[string]handler{"k": succeed, "blocks": waitOn(release)})
	for range 10 {
		ids := queryOne[[]int64](t, pool, `select array[(select id from trapeze.enqueue('blocks', lane => 'a')), (select id from trapeze.enqueue('k', lane => 'c'))]`)
		is.Equal(waitEnded(t, r, ids[1]).State, job.Succeeded)
		release <- struct{}{}
		is.Equal(waitEnded(t, r, ids[0]).State, job.Succeeded)
	}
}
