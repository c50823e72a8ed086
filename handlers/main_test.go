package handlers_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bench is a pod with the pipeline on a database of its own.
type bench struct {
	*runner.Runner
	t    *testing.T
	pool *pgxpool.Pool
	stop func()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := handlers.Setup(t.Context(), pool, handlers.Options{}); err != nil {
		t.Fatal(err)
	}
	return newPod(t, pool, handlers.Options{})
}

// newPod starts one more pod on a database; it stops with the test, or before.
func newPod(t *testing.T, pool *pgxpool.Pool, o handlers.Options) *bench {
	t.Helper()
	r, err := runner.New(pool, runner.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := handlers.Register(r, pool, o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		r.HandBackNow()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.Close()
	}
	t.Cleanup(stop)
	pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := r.Ready(); return ready })
	return &bench{Runner: r, t: t, pool: pool, stop: stop}
}

// in is the bench as a subtest sees it.
func (b bench) in(t *testing.T) *bench { b.t = t; return &b }

// step is one job of a pipeline that has ended.
type step struct {
	ID      int64
	Kind    string
	State   runner.State
	Outcome *runner.Quality
	Fence   int64
	Result  []byte
	Error   *string
}

// pipeline submits a job and waits until it and all that followed have ended.
func (b *bench) pipeline(args runner.Args) []step {
	b.t.Helper()
	id, err := b.Enqueue(b.t.Context(), args, runner.Subject("travel/2024"))
	if err != nil {
		b.t.Fatal(err)
	}
	return b.wait(id)
}

func (b *bench) wait(id int64) (steps []step) {
	b.t.Helper()
	pgtest.Wait(b.t, "the pipeline ends", func() bool {
		rows, err := b.pool.Query(b.t.Context(), `
			select id, kind, state, outcome, fence, result, error from trapeze.job where pipeline_id = $1 order by step`, id)
		if err == nil {
			steps, err = pgx.CollectRows(rows, pgx.RowToStructByPos[step])
		}
		if err != nil {
			b.t.Fatal(err)
		}
		for _, s := range steps {
			if !s.State.Terminal() {
				return false
			}
		}
		return true
	})
	return steps
}

// decode reads the result of a step.
func decode[T any](t *testing.T, s step) (v T) {
	t.Helper()
	if err := json.Unmarshal(s.Result, &v); err != nil {
		t.Fatalf("result of %s, which %s: %v", s.Kind, s.State, err)
	}
	return v
}

// file writes a file for a test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (b *bench) count(is *is.I, sql string, args ...any) (n int64) {
	b.t.Helper()
	is.Helper()
	is.NoErr(b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}
