package temporal_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/grpc"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/devserver"
)

// server is the Temporal server that all tests share.
var server = sync.OnceValue(devserver.Start)

func TestMain(m *testing.M) { pgtest.Main(m) }

type (
	raw     = runner.Job[runner.Raw]
	handler = runner.Func[runner.Raw]
	world   struct {
		*runner.Runner
		t      testing.TB
		pool   *pgxpool.Pool
		client client.Client
	}
)

// quiet is the logger that tests use. It discards everything, including errors.
var quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))

// traced attaches traces to submissions.
var traced = sdktrace.NewTracerProvider()

// open returns a runner whose default lane is served by Temporal, under a separate prefix.
func open(t testing.TB, pool *pgxpool.Pool, o temporal.Options, handlers map[string]handler, options ...runner.HandleOption) *world {
	t.Helper()
	return openWith(t, pool, grpc.EmptyDialOption{}, o, handlers, options...)
}

// openWith is like open, but takes an option for the connection to Temporal.
func openWith(t testing.TB, pool *pgxpool.Pool, dial grpc.DialOption, o temporal.Options, handlers map[string]handler, options ...runner.HandleOption) *world {
	t.Helper()
	is := is.New(t)
	c, err := client.Dial(client.Options{HostPort: server().Address(), Namespace: server().Namespace(), Logger: sdklog.NewStructuredLogger(quiet),
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{dial}}})
	is.NoErr(err)
	r, err := runner.New(pool, runner.Options{Slots: 8, Logger: quiet, ShutdownGrace: 100 * time.Millisecond, StuckAfter: 6 * time.Second, TracerProvider: traced})
	is.NoErr(err)
	for kind, h := range handlers {
		runner.HandleRaw(r, kind, h, options...)
	}
	o.Client, o.Namespace = c, server().Namespace()
	if o.Prefix == "" {
		o.Prefix = t.Name()
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 2 * time.Second
	}
	is.NoErr(temporal.Open(r, o))
	w := &world{Runner: r, t: t, pool: pool, client: c}
	t.Cleanup(func() { r.Close(); c.Close() })
	return w
}

// start runs the runner until the test ends or stop is called, and moves the default lane to Temporal.
func (w *world) start() (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		is.New(w.t).NoErr(<-done)
	})
	w.t.Cleanup(stop)
	pgtest.Wait(w.t, "the runner is ready", func() bool { ready, _ := w.Ready(); return ready })
	w.move(job.DefaultLane, temporal.Name)
	return stop
}

func (w *world) move(lane, engine string) {
	w.t.Helper()
	is := is.New(w.t)
	_, err := w.Admin("ana").SetLane(w.t.Context(), lane, job.LaneChange{Engine: &engine})
	is.NoErr(err)
	m, err := w.Admin("ana").ContinueLaneMove(w.t.Context(), lane, time.Minute)
	is.NoErr(err)
	is.Equal(m, job.LaneMove{Lane: lane, Engine: engine})
}

func (w *world) enqueue(kind, args string, options ...runner.EnqueueOption) int64 {
	w.t.Helper()
	s, err := w.Enqueue(w.t.Context(), runner.Raw{Name: kind, JSON: []byte(args)}, options...)
	is.New(w.t).NoErr(err)
	return s.ID
}

func (w *world) wait(id int64) job.JobRow {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	j, err := w.Wait(ctx, id)
	is.New(w.t).NoErr(err)
	return j
}

func TestTemporalJobAsActivity(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	traces := make(chan string, 1)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"greet": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		traces <- trace.SpanContextFromContext(ctx).TraceID().String()
		return runner.Done("hello " + string(j.Args.JSON)), nil
	}})
	w.start()
	j := w.wait(w.enqueue("greet", `{"name":"ana"}`))
	is.Equal(<-traces, one[string](w, `select split_part(traceparent, '-', 2) from trapeze.jobs where id = $1`, j.ID)) // the trace of the submission
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), `"hello {\"name\":\"ana\"}"`)
	is.True(j.Fence > 1_000_000) // the fence of an epoch
}

func (w *world) job(id int64) job.JobRow {
	w.t.Helper()
	j, err := w.GetJob(w.t.Context(), id)
	is.New(w.t).NoErr(err)
	return j
}

// one returns the only value in a query's result.
func one[T any](w *world, query string, args ...any) (value T) {
	w.t.Helper()
	is.New(w.t).NoErr(w.pool.QueryRow(w.t.Context(), query, args...).Scan(&value))
	return value
}
