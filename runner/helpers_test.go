package runner_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// raw is a job of a kind that a test names; does is its handler.
type (
	raw  = runner.Job[runner.Raw]
	does = runner.Func[runner.Raw]
)

// of is a job of a kind without arguments, or with the given JSON.
func of(kind string, json ...string) runner.Raw {
	return runner.Raw{Name: kind, JSON: []byte(strings.Join(json, ""))}
}

// make1 makes a runner with short waits and one handler a kind, and closes it with the test.
func make1(t *testing.T, pool *pgxpool.Pool, o runner.Options, handlers map[string]does, options ...runner.HandleOption) *runner.Runner {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.ShutdownGrace == 0 {
		o.ShutdownGrace = 5 * time.Second
	}
	if o.HeartbeatEvery == 0 {
		o.HeartbeatEvery = 200 * time.Millisecond
	}
	r, err := runner.New(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for kind, handler := range handlers {
		runner.HandleRaw(r, kind, handler, options...)
	}
	return r
}

// start makes a runner and runs it until the test ends.
func start(t *testing.T, pool *pgxpool.Pool, o runner.Options, handlers map[string]does, options ...runner.HandleOption) *runner.Runner {
	t.Helper()
	r := make1(t, pool, o, handlers, options...)
	run(t, r)
	return r
}

// gate is what a handler waits at; it opens at the latest when the test ends, before the runners stop.
func gate(t *testing.T) (wait <-chan struct{}, open func()) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	t.Cleanup(open)
	return c, open
}

func nothing(context.Context, *raw) (*runner.Outcome, error) { return nil, nil }

func enqueue(t *testing.T, r *runner.Runner, args job.Args, options ...runner.EnqueueOption) int64 {
	t.Helper()
	id, err := r.Enqueue(t.Context(), args, options...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func get(t *testing.T, r *runner.Runner, id int64) job.Job {
	t.Helper()
	j, err := r.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// begun submits a job and waits until its handler has been given it: a claim that is under way may keep it from being
// born running.
func begun(t *testing.T, r *runner.Runner, args job.Args, options ...runner.EnqueueOption) int64 {
	t.Helper()
	id := enqueue(t, r, args, options...)
	inState(t, r, id, job.Running)
	return id
}

// inState waits until a job is in a state.
func inState(t *testing.T, r *runner.Runner, id int64, want job.State) job.Job {
	t.Helper()
	var j job.Job
	pgtest.Wait(t, fmt.Sprintf("job %d is %s", id, want), func() bool { j = get(t, r, id); return j.State == want })
	return j
}

func why(j job.Job) job.Reason {
	if j.Reason == nil {
		return ""
	}
	return *j.Reason
}

func message(j job.Job) string {
	if j.Error == nil {
		return ""
	}
	return *j.Error
}

// scraped hands out each metric of a runner, with the values of its labels. That of a histogram is how often it was observed.
func scraped(t *testing.T, r *runner.Runner, each func(name string, labels []string, value float64)) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			each(f.GetName(), labels, m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()))
		}
	}
}

// value sums a metric over its labels.
func value(t *testing.T, r *runner.Runner, name string) (sum float64) {
	t.Helper()
	scraped(t, r, func(its string, _ []string, value float64) {
		if its == name {
			sum += value
		}
	})
	return sum
}

// told lists the names of a job's events.
func told(t *testing.T, r *runner.Runner, id int64) []string {
	t.Helper()
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Event)
	}
	return names
}

// one reads a single value.
func one[T any](t tester, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func exec(t tester, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// quiet waits until nothing is running or about to.
func quiet(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Wait(t, "every job has ended", func() bool {
		return one[int](t, pool, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0
	})
}

// column reads the only column of some rows.
func column[T any](t tester, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	found, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(found, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}
