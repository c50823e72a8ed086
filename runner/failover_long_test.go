//go:build long

package runner_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestAnAddressThatLeadsToAStandbyForAWhileLeavesNoConnectionThere(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	former := pgtest.Primary(t)
	pgtest.Migrate(t, former.URL())
	next, other := former.AddStandby(t), former.AddStandby(t)
	where := leadsTo(t, former)
	r := start(t, pgtest.Connect(t, where.url()), runner.Options{}, map[string]does{"k": nothing})
	ended(t, r, enqueue(t, r, of("k")))
	next.CaughtUp(t)
	other.CaughtUp(t)

	where.lead(other) // this server remains a standby
	former.Kill(t)
	pgtest.Wait(t, "the pod has tried the standby", func() bool {
		_, err := r.Enqueue(t.Context(), of("k"))
		is.True(err != nil)
		return where.dials.Load() > 20
	})
	next.Promote(t)
	where.lead(next)
	pgtest.Wait(t, "a job is accepted and is running", func() bool {
		made, err := r.Enqueue(t.Context(), of("k"))
		if err != nil {
			return false
		}
		ended(t, r, made.ID)
		return true
	})
	is.Equal(one[int](t, pgtest.Connect(t, other.URL()), sessions), 0)
	is.True(one[int](t, pgtest.Connect(t, next.URL()), sessions) > 0)
}

func TestWithSeveralHostsThePodChoosesThePrimaryByItself(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := primary.AddStandby(t)
	r := start(t, pgtest.Connect(t, pgtest.URLs(standby, primary)), runner.Options{}, map[string]does{"k": nothing})
	ended(t, r, enqueue(t, r, of("k")))
	is.Equal(one[int](t, pgtest.Connect(t, standby.URL()), sessions), 0)
	there := pgtest.Connect(t, primary.URL())
	pgtest.Wait(t, "the pod listens on the primary", func() bool {
		return one[int](t, there, `select count(*) from pg_stat_activity where application_name = 'trapeze-listen'`) > 0
	})
}

func TestOnTheHostsPoolOnlyAStaleConnectionIsClosed(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	pool := narrow(t, server.URL())
	r := make1(t, pool, runner.Options{}, map[string]does{"k": nothing})
	pid := func() int { return one[int](t, pool, `select pg_backend_pid()`) }
	enqueueIn := func(o pgx.TxOptions) error {
		err := pgx.BeginTxFunc(t.Context(), pool, o, func(tx pgx.Tx) error {
			_, err := r.EnqueueTx(t.Context(), tx, of("k"))
			return err
		})
		var pg *pgconn.PgError
		is.True(errors.As(err, &pg))
		is.Equal(pg.Code, "25006")
		return err
	}
	for range 2 {
		enqueue(t, r, of("k")) // the first one takes a single id, and the second one a block of ids, which is enough for the rest of the test
	}
	first := pid()
	_ = enqueueIn(pgx.TxOptions{AccessMode: pgx.ReadOnly})
	is.Equal(pid(), first) // the caller chose a read-only transaction, so the connection is kept

	other := pgtest.Connect(t, server.URL())
	exec(t, other, `alter system set default_transaction_read_only = on`)
	exec(t, other, `select pg_reload_conf()`)
	pgtest.Wait(t, "the session is notified", func() bool { return one[string](t, pool, `show default_transaction_read_only`) == "on" })
	is.Equal(pid(), first)
	_ = enqueueIn(pgx.TxOptions{})
	is.True(pid() != first) // the server no longer accepts writes
}

func TestARunnerStartsOnceTheStandbyThatItReachesIsPromoted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := primary.AddStandby(t)
	primary.Kill(t)
	where := leadsTo(t, standby)
	var log podtest.Log
	r := make1(t, pgtest.Connect(t, where.url()), runner.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, map[string]does{"k": nothing})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	pgtest.Wait(t, "several attempts were made", func() bool { return where.dials.Load() > 5 })
	ready, reasons := r.Ready()
	is.True(!ready)
	is.Equal(reasons, []string{"not started"})
	is.Equal(strings.Count(log.String(), "not started yet"), 1)
	standby.Promote(t)
	pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := r.Ready(); return ready })
	ended(t, r, enqueue(t, r, of("k")))
}
