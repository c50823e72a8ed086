package runner_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// A random load runs on two pods, one of which occasionally loses its connections. The load includes chains, failures, retries,
// cancellations and subjects. The history must always be valid, and every job must end exactly once.
func TestAnyHistoryIsLegal(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 1))
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return dice.IntN(n)
	}
	var alone exclusion
	subject := func() runner.EnqueueOption { return runner.Subject([]string{"", "x", "y", "z"}[roll(4)]) }
	act := func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		defer alone.enter(t, j)()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Duration(roll(4)) * time.Millisecond):
		}
		switch roll(12) {
		case 0:
			return nil, errors.New("bad luck")
		case 1:
			return nil, job.Permanent(errors.New("worse luck"))
		case 2:
			panic("no luck")
		case 3:
			return runner.Snooze(time.Duration(roll(20))*time.Millisecond, "not now"), nil
		case 4, 5, 6:
			if j.Step() < 5 {
				return runner.Then(rawArgs([]string{"a", "b"}[roll(2)]), subject()), nil
			}
		case 7:
			j.Progress(int64(j.Step()), 5)
			return runner.Done(j.Step()), j.Emit(ctx, "halfway", "", "", nil)
		}
		return nil, nil
	}
	handlers := map[string]handler{"a": act, "b": act}
	t.Cleanup(func() {
		if t.Failed() {
			rows, _ := direct.Query(context.Background(), `select l::text from trapeze.live l limit 20`)
			list, _ := pgx.CollectRows(rows, pgx.RowTo[string])
			t.Logf("remaining in live: %q", list)
			rows, _ = direct.Query(context.Background(), `select concat_ws(' ', c, e.event_no, e.event, e.fence, e.from_state, e.to_state, e.xid)
				from trapeze.subjects c join trapeze.job_event e on e.job = c.job_id where c.state = 'held' order by e.job, e.event_no`)
			list, _ = pgx.CollectRows(rows, pgx.RowTo[string])
			t.Logf("subjects in use: %s", strings.Join(list, "\n"))
		}
	})
	o := named("a")
	o.Slots = 4
	a := start(t, pool, o, handlers, runner.Retry(3, soon))
	o.PodName = "b"
	b := start(t, direct, o, handlers, runner.Retry(3, soon))
	for i := range historyJobs {
		r := []*runner.Runner{a, b}[roll(2)]
		var args job.Args = rawArgs([]string{"a", "b"}[roll(2)])
		if roll(3) == 0 {
			args = runner.Chain(args, rawArgs("a"), rawArgs("b"))
		}
		made, err := r.Enqueue(t.Context(), args, subject(), runner.Priority(roll(5)), runner.IdempotencyKey(fmt.Sprint(i%(historyJobs*2/3))))
		if err != nil && !errors.Is(err, job.ErrKeyReused) && r == b {
			t.Fatal(err)
		}
		switch roll(40) {
		case 0, 1, 2, 3:
			_, _ = b.Admin("dice").Cancel(t.Context(), made.ID)
		case 4:
			alone.stops(made.ID)
			_, _ = b.Admin("dice").ForceCancel(t.Context(), made.ID)
		case 5:
			proxy.Reset()
		}
	}
	pgtest.WaitFor(t, 30*time.Second, "every job has ended", func() bool {
		return queryOne[int](t, direct, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0
	})
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs`), queryOne[int](t, direct, `select count(*) from trapeze.done`)) // each job ended exactly once
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.subjects where state = 'held'`), 0)
	checkHistory(t, direct, b)
}

// exclusion records which handlers are running, and reports any that run concurrently for the same kind and subject.
type exclusion struct {
	mu      sync.Mutex
	running map[[2]string]int64
	stopped map[int64]bool // jobs that may end while their handlers are still running
}

// enter records that a job's handler has been called. The returned function must be called when the handler returns.
func (e *exclusion) enter(t *testing.T, j *raw) (leave func()) {
	if j.Subject() == "" {
		return func() {}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		e.running = map[[2]string]int64{}
	}
	key := [2]string{j.Kind(), j.Subject()}
	if other := e.running[key]; other != 0 && !e.stopped[other] {
		t.Errorf("the handlers of jobs %d and %d of kind %s and subject %s run at the same time", other, j.ID(), j.Kind(), j.Subject())
	}
	e.running[key] = j.ID()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.running[key] == j.ID() {
			delete(e.running, key)
		}
	}
}

// stops records that a job will be stopped.
func (e *exclusion) stops(id int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped == nil {
		e.stopped = map[int64]bool{}
	}
	e.stopped[id] = true
}
