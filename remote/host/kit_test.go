package host_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/host"
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

func TestMain(m *testing.M) { pgtest.Main(m) }

type tester interface {
	rapid.TB
	Context() context.Context
}

// hostOf returns the host of a runner's pod.
func hostOf(r *runner.Runner) *host.Host { return host.Of(inside.Of(r).Pod) }

// encoder is a runner whose handler returns the outcome of its context: [encoded] needs one pool for all outcomes.
var encoder = func() *runner.Runner {
	r, err := runner.NewRemote(runner.RemoteOptions{})
	if err != nil {
		panic(err)
	}
	runner.HandleRaw(r, "k", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return ctx.Value(outcomeKey{}).(*runner.Outcome), nil
	})
	return r
}()

type outcomeKey struct{}

// encoded returns an outcome as the report of a remote worker brings it.
func encoded(o *runner.Outcome) *work.Outcome {
	ctx := context.WithValue(context.Background(), outcomeKey{}, o)
	done, err := engine.Perform(ctx, inside.Of(encoder).Pod.Engine, "", engine.Assignment{Kind: "k"}, nil)
	if done == nil && o != nil {
		panic(err)
	}
	return done
}

// counter counts the claims that go over a pool's connections.
type counter struct{ claims atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "'job.claimed' from claimed") {
		c.claims.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func counted(t *testing.T, url string) (*pgxpool.Pool, *counter) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	config.ConnConfig.Tracer = c
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, c
}

func allCounted(t *testing.T, pool *pgxpool.Pool, pods ...*runner.Runner) map[endOf]int {
	t.Helper()
	var counted, want map[endOf]int
	same := func() bool {
		counted, want = finished(t, pods...), written(t, pool)
		return maps.Equal(counted, want)
	}
	for deadline := time.Now().Add(10 * time.Second); !same() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, r := range pods {
		pgtest.Wait(t, "nothing runs", func() bool { return r.Running() == 0 })
	}
	if !same() {
		t.Fatalf("the pods count\n%v, the tables say\n%v", counted, want)
	}
	return counted
}

func checkHistory(t tester, pool *pgxpool.Pool, r *runner.Runner) {
	t.Helper()
	events := map[int64][]job.Event{}
	err := view.ExportEvents(t.Context(), inside.Of(r).Store, pool, func(e job.Event) error {
		if e.Job != nil {
			events[*e.Job] = append(events[*e.Job], e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range events {
		slices.SortFunc(list, func(a, b job.Event) int { return *a.EventNo - *b.EventNo })
	}
	type span struct {
		id       int64
		from, to time.Time
	}
	type key struct{ kind, subject string }
	spans := map[key][]span{}
	err = view.ExportJobs(t.Context(), inside.Of(r).Store, pool, func(j job.Job) error {
		var (
			state   job.State
			fence   int64
			claimed time.Time
			ends    int
		)
		for i, e := range events[j.ID] {
			if *e.EventNo != i+1 {
				t.Errorf("job %d: event %d is numbered %d", j.ID, i+1, *e.EventNo)
			}
			if e.From != state {
				t.Errorf("job %d: event %d (%s) goes from %q, the job was %q", j.ID, i+1, e.Event, e.From, state)
			}
			if e.From != e.To && !job.CanMove(e.From, e.To) {
				t.Errorf("job %d: event %d (%s) moves from %q to %q", j.ID, i+1, e.Event, e.From, e.To)
			}
			if e.To == job.Running && e.From != job.Running {
				if *e.Fence <= fence {
					t.Errorf("job %d: claimed with fence %d after %d", j.ID, *e.Fence, fence)
				}
				fence, claimed = *e.Fence, e.At
			}
			if e.From == job.Running && e.To != job.Running {
				if *e.Fence != fence {
					t.Errorf("job %d: %s carries fence %d, its claim %d", j.ID, e.Event, *e.Fence, fence)
				}
				k := key{j.Kind, j.Subject}
				spans[k] = append(spans[k], span{j.ID, claimed, e.At})
			}
			if e.To.Terminal() && !e.From.Terminal() {
				ends++
			}
			state = e.To
		}
		if state != j.State || len(events[j.ID]) != j.EventNo {
			t.Errorf("job %d is %s at event %d; its history ends with %s at %d", j.ID, j.State, j.EventNo, state, len(events[j.ID]))
		}
		if fence != j.Fence {
			t.Errorf("job %d has fence %d, its last claim %d", j.ID, j.Fence, fence)
		}
		if ends > j.Epoch {
			t.Errorf("job %d ended %d times in %d epochs", j.ID, ends, j.Epoch)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, list := range spans {
		if k.subject == "" {
			continue
		}
		for i, a := range list {
			for _, b := range list[i+1:] {
				if a.to.Sub(b.from) > overlap && b.to.Sub(a.from) > overlap {
					t.Errorf("jobs %d and %d of %v ran at the same time: %v and %v", a.id, b.id, k, a, b)
				}
			}
		}
	}
}

type endOf struct{ class, kind, state string }

func ended(t *testing.T, r *runner.Runner, id int64) job.Job {
	t.Helper()
	var j job.Job
	pgtest.Wait(t, "the job ends", func() bool {
		var err error
		j, err = r.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return j.State.Terminal()
	})
	return j
}

func finished(t *testing.T, pods ...*runner.Runner) map[endOf]int {
	t.Helper()
	all := map[endOf]int{}
	for _, r := range pods {
		scraped(t, r, func(name string, labels []string, value float64) {
			if name == "trapeze_jobs_finished_total" && value > 0 {
				all[endOf{labels[0], labels[1], labels[2]}] += int(value)
			}
		})
	}
	return all
}

const forgetsClaim = `update trapeze.live set state = 'pending', pod = null, attempt = 0, fence = fence + 1000 where id = $1`

func run(t *testing.T, r *runner.Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.Close()
	}
	t.Cleanup(stop)
	pgtest.Wait(t, "the runner is ready", func() bool {
		ready, reasons := r.Ready()
		return ready || slices.Contains(reasons, runner.ReasonDrained)
	})
	return stop
}

func running(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return one[int](t, pool, `select count(*)::int from trapeze.live where state = 'running'`)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

const overlap = 150 * time.Millisecond

func written(t *testing.T, pool *pgxpool.Pool) map[endOf]int {
	t.Helper()
	all := map[endOf]int{}
	found, err := pool.Query(t.Context(), `select coalesce(error_class, ''), kind, state, count(*)::int from trapeze.job where finished_at is not null group by 1, 2, 3`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var e endOf
		var n int
		if err := found.Scan(&e.class, &e.kind, &e.state, &n); err != nil {
			t.Fatal(err)
		}
		all[e] = n
	}
	return all
}
