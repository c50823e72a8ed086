package runnertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

var points = []runnertest.Point{
	runnertest.AfterClaim, runnertest.AfterFirstCommit, runnertest.BeforeFinish, runnertest.DuringCommit, runnertest.AfterFinish,
}

// The cases use one harness in turn, because making its tables takes longer than running them.
func TestHarnessChainTakeover(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	h := runnertest.New(t, pool, runner.Options{}, steps)
	deaths := 0
	for _, at := range points {
		for _, kind := range chainDeaths(at) {
			t.Run(fmt.Sprintf("%s of %s", at, kind), func(t *testing.T) {
				is := is.New(t)
				a, b := fmt.Sprintf("a, %s of %s", at, kind), fmt.Sprintf("b, %s of %s", at, kind)
				id := h.Enqueue(first{step{Name: a, Then: b}})
				h.DieAt(at, kind)
				h.RunUntilIdle()
				deaths++
				is.Equal(h.Crashes(), deaths)                          // the pod died as requested
				is.Equal(h.Pipeline(id).Status, job.PipelineSucceeded) // another pod took over
				is.Equal(count(t, pool, a), 1)                         // each step took effect once
				is.Equal(count(t, pool, b), 1)                         // each step took effect once
				is.Equal(len(h.Jobs()), 2*deaths)                      // the next step was created once
				is.Equal(h.Transitions(id)[0], job.Pending)            // no job starts before RunUntilIdle
				of := h.Jobs(kind)
				is.Equal(of[len(of)-1].Fence > 1, at != runnertest.AfterFinish) // an unfinished job was claimed again
			})
		}
	}
}

func TestHarnessPodDeathByPanic(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
			if j.Crashes() == 0 {
				panic("the end of the process")
			}
			return nil, nil
		})
	})
	id := h.Enqueue(step{})
	h.DieAt(runnertest.BeforeFinish)
	h.RunUntilIdle()
	h.RequireState(id, job.Succeeded)
	is.Equal(h.Crashes(), 1)
}

func TestHarnessCheckpointAfterPodDeath(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var found []int
	h := runnertest.New(t, pool, runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
			var batch int
			if _, err := j.LastCheckpoint(&batch); err != nil {
				return nil, err
			}
			found = append(found, batch)
			for ; batch < 3; batch++ {
				err := j.Tx(ctx, func(tx pgx.Tx) error { return leave(fmt.Sprint("batch ", batch))(ctx, tx) }, batch+1)
				if err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
	})
	id := h.Enqueue(step{})
	h.DieAt(runnertest.AfterFirstCommit)
	h.DieAt(runnertest.AfterFirstCommit)
	h.RunUntilIdle()
	is.Equal(h.Crashes(), 2)
	is.Equal(found, []int{0, 1, 2}) // each run continues from the last checkpoint
	for batch := range 3 {
		is.Equal(count(t, pool, fmt.Sprint("batch ", batch)), 1) // no batch is lost or duplicated
	}
	h.RequireState(id, job.Succeeded)
}

func TestHarnessDeadPodLateWrites(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var h *runnertest.Harness
	var late error
	over := make(chan struct{})
	var runs atomic.Int64
	h = runnertest.New(t, pool, runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
			if runs.Add(1) > 1 {
				<-over // waits until the dead pod's handler is about to return
				return runner.Done("second"), nil
			}
			defer close(over)
			h.Die()
			late = errors.Join(context.Cause(ctx), j.Tx(ctx, func(tx pgx.Tx) error { return leave("late")(ctx, tx) }, nil))
			return runner.Done("first"), nil
		})
	})
	id := h.Enqueue(step{})
	h.RunUntilIdle()
	is.True(errors.Is(late, runnertest.ErrDead)) // the dead pod's handler has a cancelled context
	is.Equal(count(t, pool, "late"), 0)          // the dead pod's handler cannot write
	is.Equal(string(h.Job(id).Result), `"second"`)
	is.Equal(h.Transitions(id), []job.State{job.Pending, job.Running, job.Pending, job.Running, job.Succeeded})
}

// onMessage is a slog handler that calls a function when a given message is logged.
type onMessage struct {
	message string
	call    func()
}

func (o onMessage) Enabled(context.Context, slog.Level) bool { return true }
func (o onMessage) WithAttrs([]slog.Attr) slog.Handler       { return o }
func (o onMessage) WithGroup(string) slog.Handler            { return o }
func (o onMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == o.message {
		o.call()
	}
	return nil
}

// The test sees the commit of the last job before the pod receives the reply. The pod dies while it is shutting down. Its claims must not
// stay blocked until its lease expires.
func TestHarnessPodDeathDuringShutdown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var h *runnertest.Harness
	h = runnertest.New(t, pool, runner.Options{Logger: slog.New(onMessage{"runner draining", sync.OnceFunc(func() { h.Die() })})}, steps)
	h.Enqueue(last{})
	h.RunUntilIdle()
	is.Equal(h.Crashes(), 1)
	var live int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from `+h.Schema()+`.pods where closed_at is null and lease_until > now()`).Scan(&live))
	is.Equal(live, 0) // the lease has expired
}
