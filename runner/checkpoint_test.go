package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// last returns the checkpoint from which a run starts.
func last(j *raw) (at int, err error) {
	_, err = j.LastCheckpoint(&at)
	return at, err
}

func TestCheckpointAcrossErrors(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	type look struct{ attempt, before, after int }
	looks := make(chan look, 3)
	r := start(t, pool, runner.Options{}, map[string]handler{"counts": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		before, err := last(j)
		if err != nil {
			return nil, err
		}
		keep := func() error { return j.Checkpoint(ctx, before+1) }
		if j.Attempt() == 2 {
			keep = func() error { return j.Tx(ctx, func(pgx.Tx) error { return nil }, before+1) }
		}
		if err := keep(); err != nil {
			return nil, err
		}
		after, err := last(j)
		if err != nil {
			return nil, err
		}
		looks <- look{j.Attempt(), before, after}
		if j.Attempt() < 3 {
			return nil, errors.New("once more")
		}
		return nil, nil
	}}, runner.Retry(3, soon))
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("counts"))).State, job.Succeeded)
	is.Equal(<-looks, look{1, 0, 1}) // a run sees a checkpoint that it has stored itself
	is.Equal(<-looks, look{2, 1, 2}) // including a checkpoint stored with Tx
	is.Equal(<-looks, look{3, 2, 3})
}

func TestCheckpointAfterTakeover(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	kept, late := make(chan struct{}), make(chan error, 1)
	wait, open := latch(t)
	a := start(t, cut, named("a"), map[string]handler{"counts": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if err := j.Checkpoint(ctx, 7); err != nil {
			return nil, err
		}
		close(kept)
		<-wait // ignores the handler's context and waits until long after the lease is lost
		late <- j.Checkpoint(context.WithoutCancel(ctx), 8)
		return nil, nil
	}}, runner.ContinueWithoutDatabase())
	id := enqueueStarted(t, a, rawArgs("counts"))
	<-kept
	proxy.Blackhole()
	taken := make(chan int, 1)
	hold, release := latch(t)
	b := start(t, direct, named("b"), map[string]handler{"counts": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		at, err := last(j)
		taken <- at
		<-hold
		return runner.Done(at), err
	}})
	is.Equal(<-taken, 7) // the other pod continues from the checkpoint of the pod that lost its lease
	proxy.Pass()
	open()
	is.True(errors.Is(<-late, job.ErrLeaseLost)) // the former owner's write is rejected
	release()
	is.Equal(string(waitEnded(t, b, id).Result), "7")
	is.Equal(queryOne[string](t, direct, `select checkpoint::text from trapeze.job_progress where id = $1`, id), "7")
	is.Equal(get(t, b, id).Crashes, 1)
}

func TestACheckpointForgivesCrashes(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		return nil, j.Checkpoint(ctx, "on")
	}})
	id := enqueue(t, r, rawArgs("k"), runner.Delay(time.Hour))
	exec(t, pool, `update trapeze.parked set crashes = 2, run_after = now() where id = $1`, id)
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Crashes, 0)
}

func TestLostReplyToCheckpoint(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	proxy, cut := cable(t, url)
	r := start(t, cut, named("a"), map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		lost := proxy.CutReplyOnce(holds(`"marked"`))
		if err := j.Checkpoint(ctx, "marked"); err != nil {
			return nil, err
		}
		<-lost
		return nil, nil
	}})
	id := enqueue(t, r, rawArgs("k"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.Equal(queryOne[string](t, pgtest.Connect(t, url), `select checkpoint::text from trapeze.job_progress where id = $1`, id), `"marked"`)
}

func TestCheckpointOfCancelledJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	got := make(chan error, 2)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		got <- j.Checkpoint(ctx, 1)
		got <- j.Checkpoint(context.WithoutCancel(ctx), 1)
		return nil, nil
	}})
	id := enqueueStarted(t, r, rawArgs("k"))
	_, err := r.Admin("").Cancel(t.Context(), id)
	is.NoErr(err)
	is.True(errors.Is(<-got, job.ErrCancelled)) // rejected because the context is cancelled
	is.True(errors.Is(<-got, job.ErrCancelled)) // rejected because the job's row is marked as cancelled
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_progress where id = $1`, id), 0)
}
