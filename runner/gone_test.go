package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A job is deleted while its handler is running. Whatever the handler returns, nothing is written, and the log states the reason gone.
func TestTheEndOfADeletedJobIsDiscardedAsGone(t *testing.T) {
	t.Parallel()
	write := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `create table written ()`)
		return err
	}
	for name, end := range map[string]func() (*runner.Outcome, error){
		"success":   func() (*runner.Outcome, error) { return runner.Then(of("fine")), nil },
		"error":     func() (*runner.Outcome, error) { return nil, errors.New("broken") },
		"retry":     func() (*runner.Outcome, error) { return runner.Snooze(time.Hour, "later"), nil },
		"in tx":     func() (*runner.Outcome, error) { return runner.Then(of("fine")).InTx(write), nil },
		"fan-out":   func() (*runner.Outcome, error) { return runner.FanOut(of("fine"), of("fine")), nil },
		"too large": func() (*runner.Outcome, error) { return runner.Done(strings.Repeat("x", job.MaxResultBytes)), nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			log, said := debugging()
			wait, open := gate(t)
			r := start(t, pool, runner.Options{Logger: log}, map[string]does{
				"fine": nothing,
				"wait": func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return end() },
			})
			id := begun(t, r, of("wait"), runner.Subject("s"))
			exec(t, pool, `delete from trapeze.live where id = $1`, id)
			exec(t, pool, `delete from trapeze.jobs where id = $1`, id)
			events := one[int](t, pool, `select count(*) from trapeze.job_events`)
			open()
			pgtest.Wait(t, "the claim is closed", func() bool { return r.Running() == 0 })
			is.True(strings.Contains(said.String(), "reason=gone"))
			is.Equal(value(t, r, "trapeze_stale_writes_rejected_total"), 1.0)
			for _, table := range []string{"jobs", "live", "parked", "done"} {
				is.Equal(one[int](t, pool, `select count(*) from trapeze.`+table), 0)
			}
			is.Equal(one[int](t, pool, `select count(*) from trapeze.job_events`), events)
			is.True(one[bool](t, pool, `select to_regclass('written') is null`))
		})
	}
}

// Every write by the handler of a deleted job returns ErrGone, and the handler's context is cancelled with that cause. If another claim
// holds the job, the error is ErrLeaseLost instead.
func TestAWriteForADeletedJobReturnsGone(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(ctx context.Context, j *raw) error{
		"emit":       func(ctx context.Context, j *raw) error { return j.Emit(ctx, "it.happened", "", "", nil) },
		"checkpoint": func(ctx context.Context, j *raw) error { return j.Checkpoint(ctx, 1) },
		"tx":         func(ctx context.Context, j *raw) error { return j.Tx(ctx, func(pgx.Tx) error { return nil }, 1) },
		"progress": func(ctx context.Context, j *raw) error { // returns no error, so check the context's cause
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
				continue // nothing would cancel the context before the next heartbeat
			}
			what := "lost"
			if deleted {
				what = "deleted"
			}
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				pool := pgtest.Pool(t)
				wait, open := gate(t)
				refused, cause := make(chan error, 1), make(chan error, 1)
				r := start(t, pool, runner.Options{}, map[string]does{"wait": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
					<-wait
					refused <- write(ctx, j)
					cause <- context.Cause(ctx)
					return nil, nil
				}})
				id := begun(t, r, of("wait"))
				if deleted {
					// Delete both rows in one statement. With two statements, a heartbeat in between would treat the claim as lost.
					exec(t, pool, `with claim as (delete from trapeze.live where id = $1) delete from trapeze.jobs where id = $1`, id)
				} else {
					exec(t, pool, `update trapeze.live set fence = fence + 1, pod = gen_random_uuid() where id = $1`, id)
				}
				open()
				err, why := <-refused, <-cause
				is.Equal(errors.Is(err, runner.ErrGone), deleted)
				is.True(errors.Is(err, runner.ErrLeaseLost)) // ErrGone also matches ErrLeaseLost, for callers that check only for that
				if deleted {
					is.True(errors.Is(why, runner.ErrGone))
				}
				is.Equal(one[int](t, pool, `select count(*) from trapeze.job_progress`), 0)
				is.Equal(one[int](t, pool, `select count(*) from trapeze.job_events where event = 'it.happened'`), 0)
				pgtest.Wait(t, "the claim is closed", func() bool { return r.Running() == 0 })
				if !deleted {
					exec(t, pool, `update trapeze.live set state = 'pending', pod = null where id = $1`, id) // keeps the later history checks from failing
				}
			})
		}
	}
}
