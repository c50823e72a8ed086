package remote_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// pod is a runner that serves remote workers on its own port.
type pod struct {
	*runner.Runner
	url  string
	stop func() // stops the pod before the test ends
}

// byToken authenticates two principals by their tokens.
func byToken(r *http.Request) (server.Caller, error) {
	switch r.Header.Get("Authorization") {
	case "Bearer gpu":
		return server.Caller{Name: "gpu", Kind: func(name string) bool { return name != "forbidden" }}, nil
	case "Bearer other":
		return server.Caller{Name: "other"}, nil
	}
	return server.Caller{}, errors.New("nobody")
}

func startPod(t *testing.T, pool *pgxpool.Pool, o runner.Options, limits server.Options) pod {
	t.Helper()
	return startPodAt(t, "127.0.0.1:0", pool, o, limits)
}

func startPodAt(t *testing.T, addr string, pool *pgxpool.Pool, o runner.Options, limits server.Options) pod {
	t.Helper()
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = 200 * time.Millisecond
	}
	o.Logger, o.ShutdownGrace = quiet, time.Second
	r, err := runner.New(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	runner.HandleRaw(r, "on_a_pod", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	if limits.Authenticate == nil {
		limits.Authenticate = byToken
	}
	mux := http.NewServeMux()
	mux.Handle(server.Handler(r, limits))
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadTimeout: 3 * time.Second, WriteTimeout: 3 * time.Second}
	web.Protocols.SetUnencryptedHTTP2(true)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = web.Serve(listener) })
	running.Go(func() { _ = r.Run(ctx) })
	end := sync.OnceFunc(func() {
		stop()
		_ = web.Close()
		running.Wait()
		r.Close()
	})
	t.Cleanup(end)
	pgtest.Wait(t, "the pod is ready", func() bool { ok, _ := r.Ready(); return ok })
	return pod{r, "http://" + listener.Addr().String(), end}
}

// startWorker runs a remote worker until the test ends or stop is called. stop returns the error from the worker's Run.
func startWorker(t *testing.T, o worker.Options, register func(*runner.Runner)) (stop func() error) {
	t.Helper()
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	register(r)
	if o.Token == "" {
		o.Token = "gpu"
	}
	if o.Slots == 0 {
		o.Slots = 4
	}
	o.Logger = quiet
	w, err := worker.New(r, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		r.Close()
		return err
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func raw(kind, args string) runner.Raw { return runner.Raw{Name: kind, JSON: []byte(args)} }

func submit(t *testing.T, p pod, args job.Args, options ...runner.EnqueueOption) int64 {
	t.Helper()
	made, err := p.Enqueue(t.Context(), args, append(options, runner.AllowUnregistered())...)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func ends(t *testing.T, p pod, id int64, want job.State) job.JobRow {
	t.Helper()
	var j job.JobRow
	pgtest.Wait(t, "the job has ended", func() bool {
		var err error
		if j, err = p.GetJob(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return j.State.Terminal()
	})
	if j.State != want {
		t.Fatalf("job %d is %s, want %s: %v", id, j.State, want, deref(j.Error))
	}
	return j
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

type (
	load   struct{ N int }
	double struct{ N int }
	sum    struct{}
)

func (load) Kind() string   { return "load" }
func (double) Kind() string { return "double" }
func (sum) Kind() string    { return "sum" }

// Handlers can do the following on a remote worker just as on a pod: report progress, emit events, store checkpoints, fan out, and read
// branches and the previous result.
func TestRemoteHandlerFeatures(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-1"}, func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[load]) (*runner.Outcome, error) {
			var tries int
			if _, err := j.LastCheckpoint(&tries); err != nil {
				return nil, err
			}
			if age := time.Since(j.CreatedAt()); j.MaxAttempts() != 3 || j.SubmittedBy() != "ann" || age < 0 || age > time.Minute {
				return nil, fmt.Errorf("limit %d, submitter %q, age %s", j.MaxAttempts(), j.SubmittedBy(), age)
			}
			if tries == 0 {
				if err := j.Checkpoint(ctx, 1); err != nil {
					return nil, err
				}
				j.Progress(1, 4)
				if err := j.Emit(ctx, "load.begun", "warn", "first try", map[string]int{"n": j.Args.N}); err != nil {
					return nil, err
				}
				return runner.Snooze(time.Millisecond, "once more"), nil
			}
			if j.Snoozes() == 1 {
				return runner.Snooze(5*time.Millisecond, "the second time").WithBackoff(), nil
			}
			var children []runner.Args
			for i := range j.Args.N {
				children = append(children, double{i})
			}
			return runner.FanOut(children...).Join(sum{}).Result("loaded"), nil
		})
		runner.Handle(r, func(_ context.Context, j *runner.Job[double]) (*runner.Outcome, error) {
			return runner.Done(2 * j.Args.N), nil
		})
		runner.Handle(r, func(ctx context.Context, j *runner.Job[sum]) (*runner.Outcome, error) {
			var from string
			if err := j.PreviousResult(ctx, &from); err != nil {
				return nil, err
			}
			total := 0
			for b, err := range j.Branches(ctx) {
				var n int
				if err == nil {
					err = b.Result(&n)
				}
				if err != nil {
					return nil, err
				}
				total += n
			}
			return runner.Then(raw("on_a_pod", `{}`), runner.AllowUnregistered()).Result(map[string]any{"from": from, "total": total}), nil
		})
	})
	id := submit(t, p, load{4}, runner.Submitter("ann"), runner.MaxAttempts(3))
	ends(t, p, id, job.Succeeded)
	var events []string
	grown := 0
	list, err := view.JobEvents(t.Context(), inside.Of(p.Runner).Store, id, 0, 100)
	is.NoErr(err)
	for _, e := range list {
		events = append(events, e.Event)
		if e.Message != nil && *e.Message == "the second time" {
			var fields struct {
				DelayMS int `json:"delay_ms"`
			}
			is.NoErr(json.Unmarshal(e.Fields, &fields))
			grown = fields.DelayMS
		}
	}
	is.Equal(grown, 10)                            // twice the initial 5 ms
	is.True(slices.Contains(events, "load.begun")) // the handler's event is in the job's history
	is.True(slices.Contains(events, "job.snoozed"))
	var total job.JobRow
	pgtest.Wait(t, "the last step runs on a pod", func() bool {
		page, err := view.Jobs(t.Context(), inside.Of(p.Runner).Store, job.Filter{Pipeline: id})
		is.NoErr(err)
		over := false
		for _, j := range page.Jobs {
			if j.Kind == "sum" {
				total = j
			}
			over = over || j.Kind == "on_a_pod" && j.State == job.Succeeded
		}
		return over
	})
	total, err = p.GetJob(t.Context(), total.ID)
	is.NoErr(err)
	is.Equal(string(total.Result), `{"from":"loaded","total":12}`)
}

func TestDatabaseFeaturesInRemoteHandler(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "in_tx", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(context.Context, pgx.Tx) error { return nil }), nil
		}, runner.Retry(3))
		runner.HandleRaw(r, "tx", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(pgx.Tx) error { return nil }, nil)
		}, runner.Retry(3))
		runner.HandleRaw(r, "write", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return nil, j.Write(ctx, 1, &pgx.Batch{})
		}, runner.Retry(3))
		runner.HandleRaw(r, "panics", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { panic("oh") }, runner.NoRetry())
		wrong, err := runner.NewRemote(runner.RemoteOptions{})
		is.NoErr(err)
		defer wrong.Close()
		runner.HandleRaw(wrong, "declared", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil }, runner.RequiresDatabase())
		is.True(errors.Is(inside.Of(wrong).Check(), job.ErrInvalid)) // a worker cannot run a kind that declares that it needs the database
	})
	for _, kind := range []string{"in_tx", "tx", "write"} {
		j := ends(t, p, submit(t, p, raw(kind, `{}`)), job.Failed)
		is.Equal(j.Attempt, 1)                                                  // the job fails permanently, because no retry could succeed
		is.True(strings.Contains(deref(j.Error), runner.ErrNoDatabase.Error())) // the error states the reason
	}
	j := ends(t, p, submit(t, p, raw("panics", `{}`)), job.Failed)
	is.True(j.Error != nil) // the panic is reported as the handler's error, and the worker keeps running
	r, err := runner.NewRemote(runner.RemoteOptions{})
	is.NoErr(err)
	defer r.Close()
	_, err = r.Enqueue(t.Context(), raw("x", `{}`), runner.AllowUnregistered())
	is.True(errors.Is(err, runner.ErrNoDatabase)) // the runner has no database connection
	_, err = r.Admin("").Status(t.Context())
	is.True(errors.Is(err, runner.ErrNoDatabase))
	is.True(errors.Is(r.Run(t.Context()), runner.ErrNoDatabase))
}

func TestStoppingWorkerReturnsJobs(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	begun := make(chan struct{}, 1)
	stop := startWorker(t, worker.Options{Server: p.url, ShutdownGrace: time.Millisecond}, func(r *runner.Runner) {
		runner.HandleRaw(r, "long", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	id := submit(t, p, raw("long", `{}`))
	<-begun
	is.NoErr(stop())
	var j job.JobRow
	pgtest.Wait(t, "the job is pending", func() bool { // the pod may have claimed the job once more before it noticed the end of the stream
		var err error
		j, err = p.GetJob(t.Context(), id)
		return err == nil && j.State == job.Pending
	})
	is.Equal(j.Attempt, 0) // no attempt was used up
	is.Equal(j.Crashes, 0)
	var open int
	is.NoErr(inside.Of(p.Runner).Store.Pool().QueryRow(t.Context(), `select count(*) from trapeze.pods where closed_at is null`).Scan(&open))
	is.Equal(open, 1) // the worker's row is closed
}

func TestRemoteHandlerCancel(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	begun := make(chan struct{}, 1)
	var why atomic.Value
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "long", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			begun <- struct{}{}
			<-ctx.Done()
			why.Store(context.Cause(ctx))
			return nil, ctx.Err()
		})
	})
	id := submit(t, p, raw("long", `{}`))
	<-begun
	_, err := p.Admin("ops").Cancel(t.Context(), id)
	is.NoErr(err)
	ends(t, p, id, job.Cancelled)
	is.True(errors.Is(why.Load().(error), job.ErrCancelled))
}

func TestUnauthorizedRemoteWorker(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	kinds := func(kind string) func(*runner.Runner) {
		return func(r *runner.Runner) {
			runner.HandleRaw(r, kind, func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
		}
	}
	for _, c := range []struct{ token, kind string }{{"wrong", "far"}, {"gpu", "forbidden"}} {
		r, err := runner.NewRemote(runner.RemoteOptions{Logger: quiet})
		is.NoErr(err)
		kinds(c.kind)(r)
		w, err := worker.New(r, worker.Options{Server: p.url, Token: c.token, Logger: quiet})
		is.NoErr(err)
		is.True(w.Run(t.Context()) != nil) // the worker stops and returns the reason
		r.Close()
	}
	_, err := worker.New(p.Runner, worker.Options{Server: "http://192.0.2.1:80"})
	is.True(err != nil) // unencrypted connections are allowed only to loopback addresses
}

func TestOversizedRemoteResult(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{MaxBytes: 3 << 20})
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "large", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			var n int
			if err := json.Unmarshal(j.Args.JSON, &n); err != nil {
				return nil, err
			}
			return runner.Done(make([]byte, n)), nil
		})
	})
	ends(t, p, submit(t, p, raw("large", `100`)), job.Succeeded)
	ends(t, p, submit(t, p, raw("large", `100000000`)), job.Failed)
	ends(t, p, submit(t, p, raw("large", `100`)), job.Succeeded)
	is.True(true)
}

func TestRemoteHandlerErrorClass(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	fails := map[string]struct {
		class, code string
		handler     func() error
	}{
		"plain":    {"error", "", func() error { return errors.New("no") }},
		"coded":    {"error", "card_declined", func() error { return job.Permanent(job.Code("card_declined", errors.New("no"))) }},
		"panics":   {"panic", "", func() error { panic("no") }},
		"database": {"database", "23505", func() error { return &pgconn.PgError{Code: "23505", Message: "duplicate key"} }},
		"args":     {"invalid_args", "", func() error { return fmt.Errorf("%w: no", job.ErrInvalidArgs) }},
	}
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		for kind, f := range fails {
			runner.HandleRaw(r, kind, func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, f.handler() }, runner.NoRetry())
		}
	})
	for kind, f := range fails {
		j := ends(t, p, submit(t, p, raw(kind, "{}")), job.Failed)
		is.Equal(string(*j.ErrorClass), f.class)
		if f.code == "" {
			is.True(j.ErrorCode == nil)
		} else {
			is.Equal(*j.ErrorCode, f.code)
		}
	}
}
