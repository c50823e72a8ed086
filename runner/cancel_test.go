package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestCancelOfWaitingJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"a": succeed})
	for _, options := range map[string][]runner.EnqueueOption{"pending": nil, "parked": {runner.Delay(time.Hour)}} {
		for _, stop := range []bool{false, true} {
			id := enqueue(t, r, rawArgs("a"), options...)
			end, want := r.Admin("ada").Cancel, job.ReasonCancelled
			if stop {
				end, want = r.Admin("ada").ForceCancel, job.ReasonForceCancelled
			}
			c, err := end(t.Context(), id)
			is.NoErr(err)
			is.Equal(c.State, job.Cancelled) // the job is cancelled immediately
			j := get(t, r, id)
			is.Equal(j.State, job.Cancelled)
			is.Equal(reasonOf(j), want)
			c, err = end(t.Context(), id)
			is.True(errors.Is(err, job.ErrAlreadyTerminal)) // a second cancel is rejected
			is.Equal(c.State, job.Cancelled)                // the final state is returned along with the error
			events, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 10)
			is.NoErr(err)
			is.Equal(events[len(events)-1].Actor, "ada")
		}
	}
	_, err := r.Admin("").Cancel(t.Context(), 1<<40)
	is.True(errors.Is(err, job.ErrNotFound))
	run(t, r)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where fence > 0`), 0) // no job was ever claimed
	checkHistory(t, pool, newRunner(t, pool, runner.Options{}, nil))
}

func TestCancelOfRunningJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	returns := map[string]func(j *raw) (*runner.Outcome, error){
		"success":   func(*raw) (*runner.Outcome, error) { return runner.Done("late"), nil },
		"next-step": func(*raw) (*runner.Outcome, error) { return runner.Then(rawArgs("child")), nil },
		"writes":    func(j *raw) (*runner.Outcome, error) { return withRow(j, 0) },
		"error":     func(*raw) (*runner.Outcome, error) { return nil, errors.New("late") },
		"retryable": func(*raw) (*runner.Outcome, error) { return nil, job.RetryAfter(0, errors.New("late")) },
		"snooze":    func(*raw) (*runner.Outcome, error) { return runner.Snooze(0, "late"), nil },
		"panic":     func(*raw) (*runner.Outcome, error) { panic("late") },
	}
	exec(t, pool, `create table rows (job bigint)`)
	causes := make(chan error, 100)
	handlers := map[string]handler{"child": succeed, "kind-b": succeed}
	for name, do := range returns {
		handlers[name] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return do(j)
		}
	}
	a := start(t, pool, named("a"), handlers, runner.Retry(5, soon))
	b := start(t, pool, named("b"), nil)
	for name := range returns {
		for from, r := range map[string]*runner.Runner{"this pod": a, "another pod": b} {
			for _, stop := range []bool{false, true} {
				t.Run(name+" from "+from, func(t *testing.T) {
					is := is.New(t)
					id := enqueue(t, a, rawArgs(name), runner.Subject(name))
					inState(t, a, id, job.Running)
					end, cause, reason := r.Admin("ada").Cancel, job.ErrCancelled, job.ReasonCancelled
					if stop {
						end, cause, reason = r.Admin("ada").ForceCancel, job.ErrForceCancelled, job.ReasonForceCancelled
					}
					c, err := end(t.Context(), id)
					is.NoErr(err)
					is.Equal(c.State == job.Cancelled, stop) // only a stop ends the job immediately
					is.True(errors.Is(<-causes, cause))      // the handler's context was cancelled with this cause
					j := waitEnded(t, a, id)
					is.Equal(j.State, job.Cancelled)
					is.Equal(reasonOf(j), reason)
					is.Equal(string(j.Result), "")
					is.Equal(j.Fence, int64(1)) // the job did not run again
					pgtest.Wait(t, "the slot is free", func() bool { return a.Running() == 0 })
					is.Equal(get(t, a, id).EventNo, j.EventNo)
				})
			}
		}
	}
	is := is.New(t)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id is not null`), 0) // no child was inserted
	is.Equal(queryOne[int](t, pool, `select count(*) from rows`), 0)                                     // nothing was written
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.parked`), 0)                           // no job is waiting for a retry
	checkHistory(t, pool, a)
}

// A stopped job keeps everything that its handler has stored: progress, the checkpoint and committed writes.
func TestStoppedJobStoredWork(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (job bigint)`)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if err := j.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
			return err
		}, "half"); err != nil {
			return nil, err
		}
		j.Progress(5, 10)
		<-ctx.Done() // the handler returns when it next checks its context
		return nil, context.Cause(ctx)
	}})
	id := enqueueStarted(t, r, rawArgs("k"))
	pgtest.Wait(t, "the job reports progress", func() bool { j := get(t, r, id); return j.Progress != nil && j.Progress.Done != nil })
	_, err := r.Admin("ada").Cancel(t.Context(), id)
	is.NoErr(err)
	j := inState(t, r, id, job.Cancelled)
	is.Equal([]int64{*j.Progress.Done, *j.Progress.Total}, []int64{5, 10})
	is.Equal(queryOne[int](t, pool, `select count(*)::int from rows`), 1)
	is.Equal(queryOne[string](t, pool, `select checkpoint::text from trapeze.job_progress where id = $1`, id), `"half"`)
	checkHistory(t, pool, r)
}
