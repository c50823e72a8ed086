//go:build long

package runner_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// failover is a primary and a standby that will be promoted without the primary's last commits.
type failover struct {
	t                *testing.T
	primary, standby *pgtest.Node
	old              *pgxpool.Pool // connected to the primary
}

// newFailover starts both servers, with a migrated schema in which a pod has already run.
func newFailover(t *testing.T) *failover {
	t.Helper()
	f := &failover{t: t, primary: pgtest.Primary(t)}
	pgtest.Migrate(t, f.primary.URL())
	f.old = pgtest.Connect(t, f.primary.URL())
	f.standby = f.primary.AddStandby(t)
	return f
}

// pool returns a pool for a pod that connects to whichever server accepts writes.
func (f *failover) pool() *pgxpool.Pool {
	return pgtest.Connect(f.t, pgtest.URLs(f.primary, f.standby)+"&target_session_attrs=read-write")
}

// loseTail makes the standby miss all further commits, including every block of ids reserved from now on.
func (f *failover) loseTail() {
	f.t.Helper()
	f.standby.CaughtUp(f.t)
	f.standby.LoseTail(f.t)
	// The primary logs sequence values 32 blocks in advance, and the standby already has these values.
	now := pgtest.Connect(f.t, f.standby.URL())
	logged := queryOne[int64](f.t, now, `select last_value from trapeze.job_ids`)
	for queryOne[int64](f.t, f.old, `select nextval('trapeze.job_ids')`) < logged {
	}
}

// promote kills the primary and promotes the standby.
func (f *failover) promote() *pgxpool.Pool {
	f.t.Helper()
	f.primary.Kill(f.t)
	f.standby.Promote(f.t)
	return pgtest.Connect(f.t, f.standby.URL())
}

// load submits some single jobs, chains and fan-outs.
func load(t *testing.T, r *runner.Runner) (ids []int64) {
	t.Helper()
	for i := range 5 {
		ids = append(ids, enqueue(t, r, rawArgs("lone")), enqueue(t, r, rawArgs("first")), enqueue(t, r, rawArgs("fans")),
			enqueue(t, r, rawArgs("lone"), runner.IdempotencyKey(fmt.Sprint(time.Now().UnixNano(), i))))
	}
	many, err := r.EnqueueMany(t.Context(), many("lone", 300))
	if err != nil {
		t.Fatal(err)
	}
	return append(ids, many...)
}

func shapes() map[string]handler {
	return map[string]handler{
		"lone":   succeed,
		"first":  func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("second")), nil },
		"second": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("third")), nil },
		"third":  succeed,
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("lone", 3)...).Join(rawArgs("third")), nil
		},
	}
}

func TestIDsAfterLossyFailover(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	f := newFailover(t)
	survivor := start(t, f.pool(), named("survivor"), shapes())
	for _, id := range load(t, survivor) {
		waitEnded(t, survivor, id)
	}
	f.loseTail()
	killed := start(t, pgtest.Connect(t, f.primary.URL()), named("killed"), shapes()) // this pod never connects to the other server
	before := load(t, killed)
	for _, id := range before {
		waitEnded(t, killed, id)
	}
	before = column[int64](t, f.old, `select id from trapeze.jobs`)
	now := f.promote()
	kept := column[int64](t, now, `select id from trapeze.jobs`)
	is.True(len(kept) < len(before)) // the last commits are lost
	used := map[int64]bool{}
	for _, id := range before {
		used[id] = true
	}
	fresh := start(t, pgtest.Connect(t, f.standby.URL()), named("fresh"), shapes())
	var submitted []int64
	for _, r := range []*runner.Runner{fresh, survivor} {
		submitted = append(submitted, load(t, r)...)
	}
	for _, id := range submitted {
		is.True(!used[id])
		pgtest.Wait(t, "the pipeline ends", func() bool {
			p, err := view.Pipeline(t.Context(), inside.Of(fresh).Store, id)
			return err == nil && p.Status == job.PipelineSucceeded
		})
	}
	for _, id := range column[int64](t, now, `select id from trapeze.jobs where id <> all($1)`, kept) {
		is.True(!used[id])
	}
	is.Equal(queryOne[int](t, now, `select count(*) from trapeze.jobs where kind in ('first', 'second')`), 2*15)
	is.Equal(queryOne[int](t, now, `select count(*) from trapeze.jobs where kind = 'third'`), 2*15) // one for each chain and one for each fan-out
	is.Equal(queryOne[int](t, now, `select count(*) from trapeze.done where state <> 'succeeded'`), 0)
	is.Equal(queryOne[int](t, now, `select epoch from trapeze.cluster`), 1) // both pods noticed the failover, but only one began a new epoch
	checkHistory(t, now, fresh)
}

func TestClaimLostInFailover(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	f := newFailover(t)
	exec(t, f.old, `insert into trapeze.lanes (name, enabled) values ('later', false)`)
	fences := make(chan int64, 2)
	over, release := latch(t)
	var calls atomic.Int32
	r := start(t, f.pool(), named("a"), map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		fences <- j.Fence()
		if calls.Add(1) == 1 {
			<-over
		}
		return nil, nil
	}})
	id := enqueue(t, r, rawArgs("k"), runner.Lane("later"))
	events := stream(t, r, feed.Beginning)
	f.loseTail()
	exec(t, f.old, `update trapeze.lanes set enabled = true where name = 'later'`)
	before := <-fences
	is.Equal(before, int64(1))
	seen := readUntil(t, events, "job.claimed")                                                                                    // the standby does not receive this claim
	is.Equal(queryOne[int64](t, pgtest.Connect(t, f.standby.URL()), `select fence from trapeze.live where id = $1`, id), int64(0)) // so promotion will discard the claim
	now := f.promote()
	exec(t, now, `update trapeze.lanes set enabled = true where name = 'later'`)
	after := <-fences
	is.Equal(after, int64(10_000_000_001)) // the same pod claimed the job again
	pgtest.Wait(t, "the job ends", func() bool { return queryOne[int](t, now, `select count(*) from trapeze.done where id = $1`, id) == 1 })
	// The stream ends, and a client that reconnects is told that events may be missing.
	pgtest.Wait(t, "the stream has ended", func() bool {
		_, err := events.Next(t.Context(), time.Millisecond)
		return err != nil
	})
	pgtest.Wait(t, "the history has changed", func() bool { return queryOne[int](t, now, `select epoch from trapeze.cluster`) == 1 })
	again := stream(t, r, seen)
	is.True(again.Reset != "")
	pgtest.Wait(t, "a heartbeat has detected the failover", func() bool { return metricValue(t, r, "trapeze_history_changes_total") == 1 })
	release()
}

func stream(t *testing.T, r *runner.Runner, after string) *feed.Stream {
	t.Helper()
	var s *feed.Stream
	pgtest.Wait(t, "a stream", func() (ok bool) {
		var err error
		s, err = inside.Of(r).Feed.All(t.Context(), "", after)
		return err == nil
	})
	t.Cleanup(s.Close)
	return s
}

// readUntil reads a stream up to the given event and returns its cursor.
func readUntil(t *testing.T, s *feed.Stream, event string) (cursor string) {
	t.Helper()
	pgtest.Wait(t, "an event "+event, func() bool {
		list, err := s.Next(t.Context(), 10*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			if i.Event == event {
				cursor = i.ID
			}
		}
		return cursor != ""
	})
	return cursor
}
