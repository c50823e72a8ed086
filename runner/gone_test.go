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

// A job is deleted while its handler is running. Regardless of the handler's result, nothing is written, and the log gives the reason as
// gone.
func TestEndOfDeletedJob(t *testing.T) {
	t.Parallel()
	write := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `create table written ()`)
		return err
	}
	ends := map[string]func() (*runner.Outcome, error){
		"success":   func() (*runner.Outcome, error) { return runner.Then(rawArgs("fine")), nil },
		"error":     func() (*runner.Outcome, error) { return nil, errors.New("broken") },
		"retry":     func() (*runner.Outcome, error) { return runner.Snooze(time.Hour, "later"), nil },
		"in tx":     func() (*runner.Outcome, error) { return runner.Then(rawArgs("fine")).InTx(write), nil },
		"fan-out":   func() (*runner.Outcome, error) { return runner.FanOut(rawArgs("fine"), rawArgs("fine")), nil },
		"too large": func() (*runner.Outcome, error) { return runner.Done(strings.Repeat("x", job.MaxResultBytes)), nil },
	}
	pool := pgtest.Pool(t)
	log, said := debugging()
	handlers := map[string]handler{"fine": succeed}
	wait := make(chan struct{})
	for name, end := range ends {
		handlers[kindOf(name)] = func(context.Context, *raw) (*runner.Outcome, error) { <-wait; return end() }
	}
	r := start(t, pool, runner.Options{Logger: log}, handlers)
	discarded := 0
	for name := range ends {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			id := enqueueStarted(t, r, rawArgs(kindOf(name)), runner.Subject("s"))
			exec(t, pool, `delete from trapeze.live where id = $1`, id)
			exec(t, pool, `delete from trapeze.jobs where id = $1`, id)
			events := queryOne[int](t, pool, `select count(*) from trapeze.job_events`)
			wait <- struct{}{}
			discarded++
			pgtest.Wait(t, "the claim is closed", func() bool { return r.Running() == 0 })
			is.Equal(said.Count("reason=gone"), discarded)
			is.Equal(metricValue(t, r, "trapeze_stale_writes_rejected_total"), float64(discarded))
			for _, table := range []string{"jobs", "live", "parked", "done"} {
				is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.`+table), 0)
			}
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events`), events)
			is.True(queryOne[bool](t, pool, `select to_regclass('written') is null`))
		})
	}
}

// The comparison of handlers with the table finds a deleted job, even if its handler writes nothing.
func TestHandlerOfDeletedJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	causes := make(chan error, 1)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, nil
	}})
	id := enqueueStarted(t, r, rawArgs("k"))
	exec(t, pool, `with live as (delete from trapeze.live where id = $1) delete from trapeze.jobs where id = $1`, id)
	is.True(errors.Is(<-causes, runner.ErrGone))
}
