package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// relimit changes a lane's limit and waits until every open pod has applied the change, which is certain once each lease has been renewed
// twice.
func relimit(t *testing.T, pool *pgxpool.Pool, lane string, slots int) {
	t.Helper()
	exec(t, pool, `update trapeze.lanes set slots = $2 where name = $1`, lane, slots)
	for range 2 {
		now := queryOne[time.Time](t, pool, `select now()`)
		pgtest.Wait(t, "every pod sends heartbeats", func() bool {
			return queryOne[bool](t, pool, `select bool_and(lease_until > $1::timestamptz + interval '8 seconds') from trapeze.pods where closed_at is null`, now)
		})
	}
}

// endless returns a handler whose chain continues until the test ends.
func (c *crowd) endless(t *testing.T, d time.Duration) handler {
	stop, _ := latch(t)
	run := c.handler(d)
	return func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		_, err := run(ctx, j)
		select {
		case <-stop:
			return nil, nil
		default:
			return runner.Then(rawArgs("endless")), err
		}
	}
}

func TestChainInZeroSlotLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('l', 2)`)
	var c crowd
	pods := startPods(t, url, 2, runner.Options{Slots: 4}, map[string]handler{"endless": c.endless(t, 10*time.Millisecond)})
	for _, pod := range pods {
		enqueue(t, pod, rawArgs("endless"), runner.Lane("l"))
	}
	pgtest.Wait(t, "both jobs are running", func() bool { return c.now.Load() == 2 })
	relimit(t, pool, "l", 0)
	pgtest.Wait(t, "the jobs that ran have ended", func() bool { return c.now.Load() == 0 })
	is.True(!c.runsWithin(500 * time.Millisecond)) // no next step starts
	relimit(t, pool, "l", 1)
	is.True(c.runsWithin(5 * time.Second))
}

// A pod requests a slot in a lane, but becomes busy with other work before it gets the slot.
func TestSlotGrantToFullPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('one', 1)`)
	wait, open := latch(t)
	held, release := latch(t)
	at := func(gate <-chan struct{}) handler {
		return func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return nil, nil
		}
	}
	has := start(t, pgtest.Connect(t, url), runner.Options{PodName: "has", Slots: 2}, map[string]handler{"first": at(held), "k": succeed})
	enqueueStarted(t, has, rawArgs("first"), runner.Lane("one"))
	waits := start(t, pgtest.Connect(t, url), runner.Options{PodName: "waits", Slots: 2}, map[string]handler{"long": at(wait), "k": succeed})
	k := enqueue(t, waits, rawArgs("k"), runner.Lane("one"))
	pgtest.Wait(t, "the second pod is waiting", func() bool {
		return queryOne[bool](t, pool, `select exists (select from trapeze.slot_grants where pod = $1 and wants_since is not null)`, waits.PodID())
	})
	enqueueStarted(t, waits, rawArgs("long"))
	enqueueStarted(t, waits, rawArgs("long"))
	release()
	is.Equal(waitEnded(t, has, k).State, job.Succeeded) // both the first pod and the lane have a free slot
	open()
}

// A pod that is stopping keeps slots only for its running jobs, not for jobs that it could have claimed.
func TestUnusedSlotsOfStoppingPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('l', 2)`)
	wait, open := latch(t)
	handlers := map[string]handler{
		"long": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"k":    succeed,
	}
	o := runner.Options{Slots: 4, ShutdownGrace: time.Minute, HeartbeatInterval: time.Second}
	stops := newRunner(t, pgtest.Connect(t, url), o, handlers)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- stops.Run(ctx) }()
	pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := stops.Ready(); return ready })
	enqueueStarted(t, stops, rawArgs("long"), runner.Lane("l"))
	pgtest.Wait(t, "the pod has both slots", func() bool {
		enqueue(t, stops, rawArgs("k"), runner.Lane("l"))
		return queryOne[bool](t, pool, `select exists (select from trapeze.slot_grants where pod = $1 and slots = 2)`, stops.PodID())
	})
	stays := start(t, pgtest.Connect(t, url), runner.Options{PodName: "stays", Slots: 4}, handlers)
	stop()
	pgtest.Wait(t, "the pod is stopping", func() bool { ready, _ := stops.Ready(); return !ready })
	is.Equal(waitEnded(t, stays, enqueue(t, stays, rawArgs("k"), runner.Lane("l"))).State, job.Succeeded)
	open()
	is.NoErr(<-ran)
	checkSlotCounts(t, pool)
}
