//go:build long

package runner_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Handlers that report progress while they keep transactions open must not delay submissions.
func TestProgressDuringTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var in sync.WaitGroup
	in.Add(4)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{Slots: 4}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		return nil, j.Tx(ctx, func(pgx.Tx) error {
			j.Progress(1, 2)
			in.Done()
			<-wait
			return nil
		}, nil)
	}})
	for range 4 {
		enqueue(t, r, rawArgs("k"))
	}
	in.Wait()
	time.Sleep(500 * time.Millisecond)
	time.AfterFunc(30*time.Second, open)
	began := time.Now()
	enqueue(t, r, rawArgs("k2"), runner.AllowUnregistered())
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("a submission took %s", d)
	}
}
