package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestOrderAfterPriorityChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var order []int64
	r := newRunner(t, pool, runner.Options{Slots: 1}, map[string]handler{
		"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			order = append(order, j.ID())
			return nil, nil
		}, // with a single slot, jobs run one at a time
	})
	var ids []int64
	for _, priority := range []int{10, 10, 10, 30, 0} {
		ids = append(ids, enqueue(t, r, rawArgs("k"), runner.Priority(priority)))
	}
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), ids[4], 30, false)) // moves this job ahead of those with priority 10
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), ids[1], 50, false))
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), ids[3], 10, false))
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), ids[0], -100, false))
	is.Equal(get(t, r, ids[1]).Priority, 50)
	is.Equal(eventsOf(t, r, ids[1]), []string{"job.enqueued", "job.niced"})
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", ids[1])), []string{"job.nice by ann"})
	is.True(errors.Is(r.Admin("ann").SetPriority(t.Context(), ids[0], 101, false), job.ErrInvalid))
	is.True(errors.Is(r.Admin("ann").SetPriority(t.Context(), ids[0], -101, false), job.ErrInvalid))
	is.True(errors.Is(r.Admin("ann").SetPriority(t.Context(), 1<<40, 0, false), job.ErrNotFound))
	run(t, r)
	quiet(t, pool)
	is.Equal(order, []int64{ids[1], ids[4], ids[2], ids[3], ids[0]}) // at equal priority, the job that was ready first runs first
	is.True(errors.Is(r.Admin("ann").SetPriority(t.Context(), ids[0], 1, false), job.ErrAlreadyTerminal))
}

func TestPriorityChangeByJobState(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := latch(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{
		"waits": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("waits")).Join(rawArgs("joins")), nil
		},
		"joins":  succeed,
		"nobody": succeed,
	})
	later := enqueue(t, r, rawArgs("nobody"), runner.Delay(time.Hour))
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), later, 77, false))
	is.Equal(get(t, r, later).Priority, 77)
	asks := enqueue(t, r, rawArgs("nobody"), runner.NeedsApproval())
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), asks, 78, false))
	is.Equal(get(t, r, asks).State, job.AwaitingApproval)
	running := enqueueStarted(t, r, rawArgs("waits"))
	is.True(errors.Is(r.Admin("ann").SetPriority(t.Context(), running, 5, false), job.ErrNotQueued))

	parent := enqueue(t, r, runner.Chain(rawArgs("fans"), runner.With(rawArgs("nobody"), runner.Priority(1))))
	inState(t, r, parent, job.Waiting)
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), parent, 60, true))
	open()
	inState(t, r, parent, job.Succeeded)
	pgtest.Wait(t, "all steps have the priority", func() bool {
		spine, err := view.Spine(t.Context(), inside.Of(r).Store, parent)
		is.NoErr(err)
		for _, j := range spine {
			is.Equal(j.Priority, 60) // the join has the priority, and so do the steps that the chain planned after it
		}
		return len(spine) == 3
	})
}

func TestPriorityChangeOfChain(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	const args = `{"a":  "<b>","n":[1, 2]}`
	chain := func() int64 {
		return enqueue(t, r, runner.Chain(rawArgs("k"), runner.With(rawArgs("k", args), runner.Priority(-7)), rawArgs("k")), runner.Priority(3))
	}
	alone, whole := chain(), chain()
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), alone, 40, false))
	is.NoErr(r.Admin("ann").SetPriority(t.Context(), whole, 41, true))
	run(t, r)
	quiet(t, pool)
	for id, want := range map[int64][]int{alone: {40, -7, -7}, whole: {41, 41, 41}} {
		spine, err := view.Spine(t.Context(), inside.Of(r).Store, id)
		is.NoErr(err)
		var got []int
		for _, j := range spine {
			got = append(got, j.Priority)
		}
		is.Equal(got, want)
	}
	a, err := view.Spine(t.Context(), inside.Of(r).Store, alone)
	is.NoErr(err)
	b, err := view.Spine(t.Context(), inside.Of(r).Store, whole)
	is.NoErr(err)
	is.Equal(string(b[1].Args), string(a[1].Args)) // the step's arguments are unchanged
}

// holding is a query tracer that delays statements until they are released.
type holding struct {
	sql      string // a substring of the statements to hold back
	held     chan struct{}
	released chan struct{}
	once     sync.Once
}

func (h *holding) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, h.sql) {
		h.once.Do(func() { close(h.held) })
		<-h.released
	}
	return ctx
}

func (h *holding) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestPriorityChangeDuringHandOff(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	observer := pgtest.Connect(t, url)
	config, err := pgxpool.ParseConfig(url)
	is.NoErr(err)
	finish := &holding{sql: "insert into trapeze.done", held: make(chan struct{}), released: make(chan struct{})}
	config.ConnConfig.Tracer = finish
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(pool.Close)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{TraceQueries: true, HeartbeatInterval: 50 * time.Millisecond}, map[string]handler{
		"first":  succeed,
		"second": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return nil, nil },
	})
	id := enqueue(t, r, runner.Chain(rawArgs("first"), rawArgs("second")), runner.Priority(3))
	<-finish.held // the handler has returned and the second step has been built, but its row does not exist yet
	set := make(chan error, 1)
	go func() { set <- r.Admin("ann").SetPriority(t.Context(), id, 50, true) }()
	pgtest.Wait(t, "the pod has read the request", func() bool {
		return queryOne[bool](t, observer, `select exists (select from trapeze.claim_requests c join trapeze.pods p on p.id = c.pod
			where c.answered_at is not null or p.lease_until > c.created_at + interval '8.3 seconds') or
			not exists (select from trapeze.claim_requests) and exists (select from trapeze.job_events where job = $1 and event = 'job.niced')`, id)
	})
	close(finish.released)
	is.NoErr(<-set)
	spine, err := view.Spine(t.Context(), inside.Of(r).Store, id)
	is.NoErr(err)
	is.Equal(len(spine), 2)
	is.Equal(spine[1].Priority, 50)
	open()
	inState(t, r, spine[1].ID, job.Succeeded)
}
