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

// The reply to the commit that ends a run is lost. Before the outcome can be read back, the timeout cancels the handler's context, or the
// pod stops trusting its lease because the database has been unreachable for too long. The commit must still take effect, and the next step
// or the children must run.
func TestLostEndReplyContextCancelled(t *testing.T) {
	t.Parallel()
	ends := map[string]func() *runner.Outcome{
		"a step":    func() *runner.Outcome { return runner.Then(rawArgs("next")) },
		"a fan-out": func() *runner.Outcome { return runner.FanOut(rawArgs("next"), rawArgs("next")) },
	}
	for name, end := range ends {
		for why, option := range someOf(map[string]runner.HandleOption{
			"its time is over": runner.Timeout(2 * time.Second), // long enough for the job to reach the commit on a busy machine
			"trust is over":    runner.Timeout(time.Hour),
		}, "trust is over") {
			t.Run(name+", "+why, func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				url := pgtest.URL(t)
				direct := pgtest.Connect(t, url)
				exec(t, direct, `create table rows (job bigint)`)
				proxy, pool := cable(t, url)
				contexts, cuts := make(chan context.Context, 1), make(chan (<-chan struct{}), 1)
				r := start(t, pool, short, map[string]handler{"next": succeed, "first": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
					contexts <- ctx
					cut, _ := proxy.CutReply("insert into rows") // loses the reply to the commit that includes this statement
					cuts <- cut
					return end().InTx(func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
						return err
					}), nil
				}}, option)
				id := enqueue(t, r, rawArgs("first"))
				ctx, cut := <-contexts, <-cuts
				<-cut
				proxy.Refuse()
				proxy.Reset()
				if why == "trust is over" { // losing trust does not cancel the context of a handler that has already returned
					pgtest.Wait(t, "the pod does not trust its lease", func() bool { ready, _ := r.Ready(); return !ready })
				} else {
					<-ctx.Done()
				}
				time.Sleep(100 * time.Millisecond) // time for a goroutine to give up, if any would
				proxy.Pass()
				quiet(t, direct)
				is.Equal(get(t, r, id).State, job.Succeeded)
				is.Equal(queryOne[int](t, direct, `select count(*) from rows`), 1)
				is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.done where state <> 'succeeded'`), 0)
				checkHistory(t, direct, r)
			})
		}
	}
}

// The outcome of the commit that finishes the first step cannot be read back until after the shutdown grace period. If the next step still
// starts, its context is cancelled immediately. The step becomes pending again, and any pod can claim it.
func TestNextStepAfterShutdownGrace(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	contexts, cuts, steps := make(chan context.Context, 1), make(chan (<-chan struct{}), 1), make(chan context.Context, 1)
	o := short
	o.LeaseDuration, o.ShutdownGrace = time.Minute, 100*time.Millisecond
	open := make(chan struct{})
	t.Cleanup(func() { close(open) })
	r := newRunner(t, pool, o, map[string]handler{
		"next": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			steps <- ctx
			<-open // ignores the cancellation of its context
			return nil, nil
		},
		"first": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			contexts <- ctx
			cut, _ := proxy.CutReply("select 'the writes of first'")
			cuts <- cut
			return runner.Then(rawArgs("next")).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "select 'the writes of first'")
				return err
			}), nil
		}})
	stop, done := runInBackground(t, r)
	id := enqueue(t, r, rawArgs("first"))
	ctx, cut := <-contexts, <-cuts
	<-cut
	proxy.Refuse()
	proxy.Reset()
	stop()
	<-ctx.Done()
	is.True(errors.Is(context.Cause(ctx), job.ErrShutdown))
	proxy.Pass()
	is.NoErr(<-done)
	is.Equal(get(t, r, id).State, job.Succeeded)
	select {
	case step := <-steps:
		is.True(errors.Is(context.Cause(step), job.ErrShutdown))
	default: // the next step was found too late to start
	}
	is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.live where kind = 'next' and state = 'pending'`), 1) // any pod can claim it
}
