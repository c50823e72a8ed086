package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A handler can emit an event inside its own transaction without blocking itself.
func TestEmitDuringHandlerTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	took := make(chan time.Duration, 1)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		began := time.Now()
		err := j.Tx(ctx, func(pgx.Tx) error { return j.Emit(ctx, "row.bad", "warn", "line 3", nil) }, nil)
		took <- time.Since(began)
		return nil, err
	}}, runner.Timeout(5*time.Second)) // otherwise, a failing transaction would be retried for eight minutes
	id := enqueue(t, r, rawArgs("k"))
	if d := <-took; d > 2*time.Second {
		t.Errorf("the handler took %s", d)
	}
	inState(t, r, id, job.Succeeded)
}
