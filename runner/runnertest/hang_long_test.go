//go:build long

package runnertest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestHangingJobReported(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var id int64
	stopped := false
	said := failing(t, func(t testing.TB) {
		h := runnertest.New(t, pool, runner.Options{}, func(r *runner.Runner) {
			runner.Handle(r, func(ctx context.Context, _ *runner.Job[step]) (*runner.Outcome, error) {
				<-ctx.Done()
				stopped = true
				return nil, context.Cause(ctx)
			})
		})
		h.Timeout = 8 * time.Second // long enough for the job to start, even on a slow machine
		id = h.Enqueue(step{})
		h.RunUntilIdle()
		t.Errorf("RunUntilIdle returned")
	})
	is.Equal(said, fmt.Sprintf("runnertest: not idle after 8s:\n\tjob %d (step) is running on pod-1: attempt 1, crashes 0", id))
	is.True(stopped) // the handler does not outlive the test
	var schemas int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'runnertest%'`).Scan(&schemas))
	is.Equal(schemas, 0) // the schema has been dropped
}
