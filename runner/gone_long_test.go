//go:build long

package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Every write by a deleted job's handler returns ErrGone, and the handler's context is cancelled with that cause. If another claim holds
// the job, the error is ErrLeaseLost instead.
func TestWriteForDeletedJob(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(ctx context.Context, j *raw) error{
		"emit":       func(ctx context.Context, j *raw) error { return j.Emit(ctx, "it.happened", "", "", nil) },
		"checkpoint": func(ctx context.Context, j *raw) error { return j.Checkpoint(ctx, 1) },
		"tx":         func(ctx context.Context, j *raw) error { return j.Tx(ctx, func(pgx.Tx) error { return nil }, 1) },
		"progress": func(ctx context.Context, j *raw) error { // Progress returns no error, so the context's cause is checked
			j.Progress(1, 2)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(20 * time.Second):
				return errors.New("nobody told")
			}
		},
	} {
		for _, deleted := range []bool{true, false} {
			if name == "progress" && !deleted {
				continue // the context would not be cancelled before the next heartbeat
			}
			what := "lost"
			if deleted {
				what = "deleted"
			}
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				pool := pgtest.Pool(t)
				wait, open := latch(t)
				refused, cause := make(chan error, 1), make(chan error, 1)
				r := start(t, pool, runner.Options{}, map[string]handler{"wait": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
					<-wait
					refused <- write(ctx, j)
					cause <- context.Cause(ctx)
					return nil, nil
				}})
				id := enqueueStarted(t, r, rawArgs("wait"))
				if deleted {
					// Delete both rows in one statement. With two statements, a heartbeat in between would treat the claim as lost.
					exec(t, pool, `with claim as (delete from trapeze.live where id = $1) delete from trapeze.jobs where id = $1`, id)
				} else {
					exec(t, pool, `update trapeze.live set fence = fence + 1, pod = gen_random_uuid() where id = $1`, id)
				}
				open()
				err, why := <-refused, <-cause
				is.Equal(errors.Is(err, runner.ErrGone), deleted)
				is.True(errors.Is(err, runner.ErrLeaseLost)) // ErrGone also matches ErrLeaseLost, for callers that check only for the latter
				if deleted {
					is.True(errors.Is(why, runner.ErrGone))
				}
				is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_progress`), 0)
				is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events where event = 'it.happened'`), 0)
				pgtest.Wait(t, "the claim is closed", func() bool { return r.Running() == 0 })
				if !deleted {
					exec(t, pool, `update trapeze.live set state = 'pending', pod = null where id = $1`, id) // so that later history checks do not fail
				}
			})
		}
	}
}
