package runner_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// These benchmarks measure the per-job cost in this process: `go test -run '^$' -bench . -benchmem ./runner`. Each op runs one job on a
// real database. Allocations and bytes cover the whole process while the benchmark timer is running.

// letter is a job that counts how often its arguments are encoded.
type letter struct {
	Text    string `json:"text"`
	encoded *atomic.Int64
}

func (letter) Kind() string { return "letter" }

func (l letter) MarshalJSON() ([]byte, error) {
	l.encoded.Add(1)
	return json.Marshal(map[string]string{"text": l.Text})
}

func (l *letter) UnmarshalJSON(b []byte) error {
	var fields map[string]string
	err := json.Unmarshal(b, &fields)
	l.Text = fields["text"]
	return err
}

func TestArgsAreEncodedOnce(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, nil)
	var encoded atomic.Int64
	got := make(chan string, 3)
	runner.Handle(r, func(_ context.Context, j *runner.Job[letter]) (*runner.Outcome, error) {
		got <- j.Args.Text
		if j.Args.Text == "first" {
			return runner.Then(letter{Text: "second", encoded: &encoded}), nil
		}
		return nil, nil
	})
	run(t, r)
	enqueue(t, r, letter{Text: "first", encoded: &encoded})
	_, err := r.EnqueueMany(t.Context(), []job.Args{letter{Text: "third", encoded: &encoded}})
	is.NoErr(err)
	quiet(t, pool)
	is.Equal(len(got), 3)              // the job, its next step, and the claimed job
	is.Equal(encoded.Load(), int64(3)) // each was encoded only once
}

// bench returns a runner with one handler, for kind "k", on a new database.
func bench(b *testing.B, o runner.Options, handler handler) (*pgxpool.Pool, *runner.Runner) {
	b.Helper()
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelWarn}))
	pool := pgtest.Pool(b)
	r, err := runner.New(pool, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Close)
	runner.HandleRaw(r, "k", handler)
	return pool, r
}

// begin runs the runner until the benchmark ends.
func begin(b *testing.B, r *runner.Runner) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
}

// endedWell waits until n jobs have succeeded. It starts polling the database once handled is closed.
func endedWell(b *testing.B, pool *pgxpool.Pool, handled <-chan struct{}, n int) {
	<-handled
	for done := 0; done < n; time.Sleep(time.Millisecond) {
		if err := pool.QueryRow(b.Context(), `select count(*) from trapeze.done where state = 'succeeded'`).Scan(&done); err != nil {
			b.Fatal(err)
		}
	}
}

// counting returns a handler that closes handled on its n-th call.
func counting(n int, then func(*raw) *runner.Outcome) (handler handler, handled chan struct{}) {
	var calls atomic.Int64
	handled = make(chan struct{})
	return func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if calls.Add(1) == int64(n) {
			close(handled)
		}
		return then(j), nil
	}, handled
}

func nothingThen(*raw) *runner.Outcome { return nil }

// BenchmarkClaimRunFinish runs jobs that were submitted beforehand.
func BenchmarkClaimRunFinish(b *testing.B) {
	handler, handled := counting(b.N, nothingThen)
	pool, r := bench(b, runner.Options{Slots: 100}, handler)
	list := make([]job.Args, b.N)
	for i := range list {
		list[i] = rawArgs("k")
	}
	if _, err := r.EnqueueMany(b.Context(), list); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	begin(b, r)
	endedWell(b, pool, handled, b.N)
	b.StopTimer()
}

// BenchmarkClaimRunFinishInBatches is like BenchmarkClaimRunFinish, with up to a hundred jobs per call.
func BenchmarkClaimRunFinishInBatches(b *testing.B) {
	handled := make(chan struct{})
	pool, r := bench(b, runner.Options{Slots: 100}, succeed)
	var left, calls atomic.Int64
	left.Store(int64(b.N))
	runner.HandleBatch(r, func(_ context.Context, jobs []*runner.Job[parcel]) []runner.BatchResult {
		calls.Add(1)
		if left.Add(-int64(len(jobs))) == 0 {
			close(handled)
		}
		return make([]runner.BatchResult, len(jobs))
	})
	list := make([]job.Args, b.N)
	for i := range list {
		list[i] = parcel{}
	}
	if _, err := r.EnqueueMany(b.Context(), list); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	begin(b, r)
	endedWell(b, pool, handled, b.N)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/float64(calls.Load()), "jobs/call")
}

// BenchmarkHandOff runs a hundred concurrent chains, step by step.
func BenchmarkHandOff(b *testing.B) {
	const chains = 100
	each := (b.N + chains - 1) / chains
	handler, handled := counting(each*chains, func(j *raw) *runner.Outcome {
		if j.Step() == each-1 {
			return nil
		}
		return runner.Then(rawArgs("k"))
	})
	pool, r := bench(b, runner.Options{Slots: chains}, handler)
	list := make([]job.Args, chains)
	for i := range list {
		list[i] = rawArgs("k")
	}
	if _, err := r.EnqueueMany(b.Context(), list); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	begin(b, r)
	endedWell(b, pool, handled, each*chains)
	b.StopTimer()
}

// BenchmarkEnqueueRunFinish submits jobs one at a time to the pod that runs them, so each job is started on insert.
func BenchmarkEnqueueRunFinish(b *testing.B) {
	handler, handled := counting(b.N, nothingThen)
	pool, r := bench(b, runner.Options{}, handler)
	begin(b, r)
	for ready := false; !ready; time.Sleep(time.Millisecond) {
		ready, _ = r.Ready()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := r.Enqueue(b.Context(), rawArgs("k", `{"page": 1}`)); err != nil {
			b.Fatal(err)
		}
	}
	endedWell(b, pool, handled, b.N)
	b.StopTimer()
}

// BenchmarkEnqueueMany submits jobs with 1.5 kB of arguments, 2,000 per call.
func BenchmarkEnqueueMany(b *testing.B) {
	pool, r := bench(b, runner.Options{}, succeed)
	list := make([]job.Args, min(b.N, 2000))
	for i := range list {
		list[i] = rawArgs("k", `{"text": "`+strings.Repeat("x", 1500)+`"}`)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; left -= len(list) {
		if _, err := r.EnqueueMany(b.Context(), list[:min(left, len(list))]); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	var n int
	if err := pool.QueryRow(b.Context(), `select count(*) from trapeze.jobs`).Scan(&n); err != nil || n != b.N {
		b.Fatalf("%d of %d jobs exist: %v", n, b.N, err)
	}
}
