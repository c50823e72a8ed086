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

// An operator must be able to stop a job whose writes hang because of a lock or a lost connection.
func TestStopJobWithHangingWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	in := make(chan struct{})
	r := start(t, pool, runner.Options{StuckAfter: 500 * time.Millisecond}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
			close(in)
			_, err := tx.Exec(ctx, `select pg_sleep(40)`)
			return err
		}), nil
	}}, runner.Timeout(time.Second))
	id := enqueue(t, r, rawArgs("k"))
	<-in
	_, err := r.Admin("me").ForceCancel(t.Context(), id)
	if err != nil {
		t.Errorf("stop: %v", err)
	}
	if j := get(t, r, id); j.State == job.Running {
		t.Fatalf("still running %s after its timeout of a second", time.Since(*j.StartedAt))
	}
}
