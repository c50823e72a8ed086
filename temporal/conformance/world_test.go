package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// raw is a job of any kind, and does is its handler.
type (
	raw  = runner.Job[runner.Raw]
	does = runner.Func[runner.Raw]
)

// of returns a job of a kind with the given JSON as arguments.
var of = podtest.RawArgs

// engine is an engine under test.
type engine struct {
	name string // the engine's name in lanes
	// open opens the engine on a world's runner before the runner starts. It is nil for PostgreSQL.
	open func(w *world, r *runner.Runner)
	// workers means that a worker without a database runs the handlers of jobs on Temporal.
	workers bool
}

// world is a database with a pod. The engine under test runs the jobs in its default lane.
type world struct {
	*testing.T
	*is.I
	engine engine
	prefix string // the prefix of workflow ids, because the test server outlives the database
	pool   *pgxpool.Pool
	o      runner.Options
	r      *runner.Runner // the first pod
	worker *runner.Runner // the worker without a database; nil if the engine has none
}

// newWorld returns a world whose pod is not running yet, so that the case can register handlers first.
func newWorld(t *testing.T, e engine) *world {
	t.Helper()
	w := &world{T: t, I: is.New(t), engine: e, prefix: rand.Text(), pool: pgtest.Pool(t)}
	pgtest.Exec(t, w.pool, `update trapeze.lanes set engine = $1`, e.name)
	return w
}

// Helper marks the calling function as a helper for both embedded types.
func (w *world) Helper() { w.T.Helper(); w.I.Helper() }

// Fail fails the case.
func (w *world) Fail() { w.T.Fail() }

// temporal reports whether Temporal runs the jobs.
func (w *world) temporal() bool { return w.engine.name != job.EnginePostgreSQL }

// pod returns another pod, which the case must start. The pod closes when the case ends.
func (w *world) pod() *runner.Runner {
	w.Helper()
	r := podtest.New(w.T, w.pool, w.o, nil)
	if w.engine.open != nil {
		w.engine.open(w, r)
	}
	return r
}

// runners returns the first pod and, if the engine has one, the worker without a database.
func (w *world) runners() []*runner.Runner {
	w.Helper()
	if w.engine.workers {
		return []*runner.Runner{w.r, w.elsewhere()}
	}
	return []*runner.Runner{w.r}
}

// handle registers a handler with the first pod. An error from the handler fails its job immediately unless the options set a retry policy.
func (w *world) handle(kind string, handler does, options ...runner.HandleOption) {
	w.Helper()
	if w.r == nil {
		w.r = w.pod()
	}
	if w.engine.workers {
		w.handleElsewhere(kind, handler, options...)
		handler = w.onlyInPods(handler)
	}
	runner.HandleRaw(w.r, kind, handler, options...)
}

// start runs the first pod until the case ends or stop is called.
func (w *world) start() (stop func()) {
	w.Helper()
	if w.r == nil {
		w.r = w.pod()
	}
	stop = podtest.Run(w.T, w.r)
	if w.engine.workers {
		return w.work(stop)
	}
	return stop
}

// enqueue submits a job and returns its id.
func (w *world) enqueue(args job.Args, options ...runner.EnqueueOption) int64 {
	w.Helper()
	return podtest.Enqueue(w.T, w.r, args, options...)
}

// within limits each wait. On a busy machine, a Temporal test server needs a second for ten jobs.
const within = 3 * time.Minute

func (w *world) get(id int64) job.JobRow { w.Helper(); return podtest.Get(w.T, w.r, id) }

// wait waits for a condition.
func (w *world) wait(what string, cond func() bool) {
	w.Helper()
	pgtest.WaitFor(w.T, within, what, cond)
}

// inState waits until a job is in the given state.
func (w *world) inState(id int64, want job.State) job.JobRow {
	w.Helper()
	return podtest.InState(w.T, w.r, id, want)
}

// ended waits until a job has ended, and returns it.
func (w *world) ended(id int64) job.JobRow {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), within)
	defer cancel()
	j, err := w.r.Wait(ctx, id)
	if err != nil {
		w.Fatalf("job %d has not ended: %v; it is %+v", id, err, w.get(id))
	}
	return j
}

// over waits until a pipeline is over and returns its status.
func (w *world) over(id int64) (status job.Status) {
	w.Helper()
	w.wait(fmt.Sprintf("pipeline %d is over", id), func() bool {
		p, err := w.r.Admin("").Pipeline(w.Context(), id)
		w.NoErr(err)
		status = p.Status
		return status.Over()
	})
	return status
}

// only returns the only job of a kind, after it has ended.
func (w *world) only(kind string) job.JobRow {
	w.Helper()
	ids := w.ids(kind)
	if len(ids) != 1 {
		w.Fatalf("there are %d jobs of kind %s, want 1", len(ids), kind)
	}
	return w.ended(ids[0])
}

// ids returns the jobs of a kind.
func (w *world) ids(kind string) []int64 {
	w.Helper()
	return pgtest.Column[int64](w.T, w.pool, `select id from trapeze.jobs where kind = $1 order by id`, kind)
}

// count returns the number of events with the given name in a job's history.
func (w *world) count(id int64, event string) (n int) {
	w.Helper()
	for _, name := range podtest.Events(w.T, w.r, id) {
		if name == event {
			n++
		}
	}
	return n
}

// check checks that each job has ended and that the invariants of job histories hold.
func (w *world) check() {
	w.Helper()
	podtest.CheckHistory(w.T, w.pool, w.r)
}

// trail records the actions of handlers in order.
type trail struct {
	mu   sync.Mutex
	list []string
}

func (t *trail) add(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, fmt.Sprintf(format, args...))
}

func (t *trail) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.list)
}

func (t *trail) String() string { return strings.Join(t.all(), " ") }

// nothing is a handler that succeeds without a result.
func nothing(context.Context, *raw) (*runner.Outcome, error) { return nil, nil }

// fails returns a handler that returns an error.
func fails(err error) does {
	return func(context.Context, *raw) (*runner.Outcome, error) { return nil, err }
}

// returns returns a handler that returns an outcome.
func returns(o func() *runner.Outcome) does {
	return func(context.Context, *raw) (*runner.Outcome, error) { return o(), nil }
}

// number is a handler that returns the job's arguments as its result.
func number(_ context.Context, j *raw) (*runner.Outcome, error) { return runner.Done(j.Args.JSON), nil }

// sum is a join's handler that adds up the branches' results.
func sum(ctx context.Context, j *raw) (*runner.Outcome, error) {
	var total, failed int
	for b, err := range j.Branches(ctx) {
		if err != nil {
			return nil, err
		}
		var n int
		if b.State != job.Succeeded {
			failed++
		} else if err := b.Result(&n); err != nil {
			return nil, err
		}
		total += n
	}
	return runner.Done([]int{total, failed}), nil
}

// children returns n jobs of a kind, with the numbers from 1 to n as arguments.
func children(kind string, n int) []job.Args {
	list := make([]job.Args, n)
	for i := range list {
		list[i] = of(kind, fmt.Sprint(i+1))
	}
	return list
}

// soon is a retry policy with short delays.
var soon = job.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond}

// receive returns the next value from a channel. If none arrives within a minute, it fails the case.
func receive[T any](w *world, c <-chan T) (v T) {
	w.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		w.Fatal("nothing was sent for a minute")
	}
	return v
}
