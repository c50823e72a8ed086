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

// bench is a pod that runs the pipeline on a separate database.
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

// newPod starts another pod on a database. The pod stops when the test ends, unless the test stops it earlier.
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
		r.StopNow()
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

// in returns a copy of the bench for a subtest.
func (b bench) in(t *testing.T) *bench { b.t = t; return &b }

// step is a finished job of a pipeline.
type step struct {
	ID      int64
	Kind    string
	Subject string
	State   runner.State
	Outcome *runner.OutcomeStatus
	Fence   int64
	Result  []byte
	Error   *string
}

// pipeline submits a job and waits until the whole pipeline has ended. It returns the successive steps, without the recalculations of a
// factor sync.
func (b *bench) pipeline(args runner.Args) []step {
	b.t.Helper()
	made, err := b.Enqueue(b.t.Context(), args, runner.Subject("travel/2024"))
	if err != nil {
		b.t.Fatal(err)
	}
	return b.wait(made.ID)
}

func (b *bench) wait(id int64) (spine []step) {
	b.t.Helper()
	pgtest.Wait(b.t, "the pipeline ends", func() bool {
		spine = b.steps("pipeline_id = $1 and group_id is null order by step", id)
		return len(spine) > 0 && spine[len(spine)-1].State.Terminal() && status(b, id) != "running"
	})
	return spine
}

// recalculations returns a factor sync's branches.
func (b *bench) recalculations(sync step) []step {
	b.t.Helper()
	return b.steps("group_id = $1 order by child_no", sync.ID)
}

func (b *bench) steps(where string, args ...any) []step {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(),
		"select id, kind, subject, state, outcome, fence, result, error from trapeze.job where "+where, args...)
	if err == nil {
		var steps []step
		if steps, err = pgx.CollectRows(rows, pgx.RowToStructByPos[step]); err == nil {
			return steps
		}
	}
	b.t.Fatal(err)
	return nil
}

// status returns a pipeline's status, or "lone" for a single job.
func status(b *bench, id int64) (found string) {
	b.t.Helper()
	err := b.pool.QueryRow(b.t.Context(), "select coalesce((select status from trapeze.pipeline where id = $1), 'lone')", id).Scan(&found)
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// decode decodes a step's result.
func decode[T any](t *testing.T, s step) (v T) {
	t.Helper()
	if err := json.Unmarshal(s.Result, &v); err != nil {
		t.Fatalf("result of %s, which %s: %v", s.Kind, s.State, err)
	}
	return v
}

// file writes a file to a temporary directory and returns its path.
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
