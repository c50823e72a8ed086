//go:build long

package runner_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trapeze-run/trapeze/internal/faultnet"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// address is a network address that can be switched from one server to another, like a DNS name or a proxy. Open connections stay with
// their server.
type address struct {
	*faultnet.Proxy
	port  atomic.Int64
	dials atomic.Int64 // number of connections to the current server

	options string // options in the connection string
}

func leadsTo(t *testing.T, node *pgtest.Node) *address {
	t.Helper()
	a := &address{}
	a.lead(node)
	proxy, err := faultnet.StartTo(func() (string, string) {
		a.dials.Add(1)
		return "tcp", "127.0.0.1:" + strconv.FormatInt(a.port.Load(), 10)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	a.Proxy = proxy
	return a
}

func (a *address) lead(node *pgtest.Node) {
	a.port.Store(int64(node.Port()))
	a.dials.Store(0)
	if a.options == "" { // all servers have the same password
		_, a.options, _ = strings.Cut(node.URL(), "?")
	}
}

func (a *address) url() string {
	return "postgres://postgres@" + a.Addr() + "/postgres?" + a.options
}

// readOnly makes a running primary reject writes, even in open sessions.
func readOnly(t *testing.T, node *pgtest.Node) {
	t.Helper()
	node.Exec(t, `alter system set default_transaction_read_only = on`)
	node.Exec(t, `select pg_reload_conf()`)
	pool := pgtest.Connect(t, node.URL())
	pgtest.Wait(t, "the server rejects writes", func() bool {
		return queryOne[string](t, pool, `show default_transaction_read_only`) == "on"
	})
}

// sessions counts the open connections from the pods' own pools to a server.
const sessions = `select count(*) from pg_stat_activity where application_name = 'trapeze'`

func TestAddressLeadsToStandbyTemporarily(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	former := pgtest.Primary(t)
	pgtest.Migrate(t, former.URL())
	next, other := former.AddStandby(t), former.AddStandby(t)
	where := leadsTo(t, former)
	r := start(t, pgtest.Connect(t, where.url()), runner.Options{}, map[string]handler{"k": succeed})
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	next.CaughtUp(t)
	other.CaughtUp(t)

	where.lead(other) // this server remains a standby
	former.Kill(t)
	pgtest.Wait(t, "the pod has tried the standby", func() bool {
		_, err := r.Enqueue(t.Context(), rawArgs("k"))
		is.True(err != nil)
		return where.dials.Load() > 20
	})
	next.Promote(t)
	where.lead(next)
	pgtest.Wait(t, "a job is accepted and is running", func() bool {
		made, err := r.Enqueue(t.Context(), rawArgs("k"))
		if err != nil {
			return false
		}
		waitEnded(t, r, made.ID)
		return true
	})
	is.Equal(queryOne[int](t, pgtest.Connect(t, other.URL()), sessions), 0)
	is.True(queryOne[int](t, pgtest.Connect(t, next.URL()), sessions) > 0)
}

func TestPrimaryAmongSeveralHosts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := primary.AddStandby(t)
	r := start(t, pgtest.Connect(t, pgtest.URLs(standby, primary)), runner.Options{}, map[string]handler{"k": succeed})
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	is.Equal(queryOne[int](t, pgtest.Connect(t, standby.URL()), sessions), 0)
	there := pgtest.Connect(t, primary.URL())
	pgtest.Wait(t, "the pod listens on the primary", func() bool {
		return queryOne[int](t, there, `select count(*) from pg_stat_activity where application_name = 'trapeze-listen'`) > 0
	})
}

func TestStaleConnectionInHostPool(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	pool := narrow(t, server.URL())
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	pid := func() int { return queryOne[int](t, pool, `select pg_backend_pid()`) }
	enqueueIn := func(o pgx.TxOptions) error {
		err := pgx.BeginTxFunc(t.Context(), pool, o, func(tx pgx.Tx) error {
			_, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"))
			return err
		})
		var pg *pgconn.PgError
		is.True(errors.As(err, &pg))
		is.Equal(pg.Code, "25006")
		return err
	}
	for range 2 {
		enqueue(t, r, rawArgs("k")) // the first submission takes a single id, and the second a block of ids that lasts for the rest of the test
	}
	first := pid()
	_ = enqueueIn(pgx.TxOptions{AccessMode: pgx.ReadOnly})
	is.Equal(pid(), first) // the connection is kept because the caller chose a read-only transaction

	other := pgtest.Connect(t, server.URL())
	exec(t, other, `alter system set default_transaction_read_only = on`)
	exec(t, other, `select pg_reload_conf()`)
	pgtest.Wait(t, "the session is notified", func() bool { return queryOne[string](t, pool, `show default_transaction_read_only`) == "on" })
	is.Equal(pid(), first)
	_ = enqueueIn(pgx.TxOptions{})
	is.True(pid() != first) // the server no longer accepts writes
}

func TestRunnerWaitsForStandbyPromotion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := primary.AddStandby(t)
	primary.Kill(t)
	where := leadsTo(t, standby)
	var log podtest.Log
	r := newRunner(t, pgtest.Connect(t, where.url()), runner.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, map[string]handler{"k": succeed})
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
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
}

func TestFormerPrimaryWithOpenConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	former := pgtest.Primary(t)
	pgtest.Migrate(t, former.URL())
	former.Exec(t, `create table written (n bigint)`)
	next := former.AddStandby(t)
	where := leadsTo(t, former)
	wait, open := latch(t)
	r := start(t, pgtest.Connect(t, where.url()), runner.Options{HeartbeatInterval: 2 * time.Second, LeaseDuration: 8 * time.Second}, map[string]handler{
		"k": succeed,
		"long": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			return new(runner.Outcome).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into written values ($1)`, j.ID())
				return err
			}), nil
		},
	})
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	long := enqueueStarted(t, r, rawArgs("long"))
	then := pgtest.Connect(t, next.URL())
	const listens = `select count(*) from pg_stat_activity where application_name = 'trapeze-listen'`
	const locks = `select count(*) from pg_locks where locktype = 'advisory' and objid = 420021`
	before := pgtest.Connect(t, former.URL())
	pgtest.Wait(t, "the pod listens and leads", func() bool { return queryOne[int](t, before, listens) > 0 && queryOne[int](t, before, locks) > 0 })

	readOnly(t, former)
	next.CaughtUp(t)
	next.Promote(t)
	where.lead(next)
	began := time.Now()
	pgtest.WaitFor(t, 30*time.Second, "a job is accepted and runs", func() bool {
		made, err := r.Enqueue(t.Context(), rawArgs("k"))
		if err != nil {
			return false
		}
		waitEnded(t, r, made.ID)
		return true
	})
	t.Logf("jobs ran again %s after the change", time.Since(began))
	is.True(time.Since(began) < 8*time.Second)
	open()
	is.Equal(waitEnded(t, r, long).State, job.Succeeded) // its handler was running during the failover and writes through the host's pool
	is.Equal(queryOne[int](t, then, `select count(*) from written`), 1)
	pgtest.Wait(t, "the pod has no connection left to the former primary", func() bool { return queryOne[int](t, before, sessions) == 0 })
	pgtest.Wait(t, "the pod listens and leads where writes are accepted", func() bool { return queryOne[int](t, then, listens) > 0 && queryOne[int](t, then, locks) > 0 })
	is.Equal(queryOne[int](t, before, locks), 0)
}

func TestCutOffPodLeaderMetrics(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	r := start(t, pgtest.Connect(t, proxy.URL()), runner.Options{PollInterval: 2 * time.Second, LeaseDuration: time.Second}, map[string]handler{"k": succeed})
	reports := func(want float64) func() bool {
		return func() bool {
			return metricValue(t, r, "trapeze_listen_connected") == want && metricValue(t, r, "trapeze_leader") == want
		}
	}
	pgtest.WaitFor(t, 40*time.Second, "it listens and leads", reports(1))
	proxy.Refuse()
	proxy.Stall() // the connections stay half-open
	pgtest.WaitFor(t, 30*time.Second, "it reports neither", reports(0))
	proxy.Reset() // otherwise, the half-open session would keep the leader lock
	proxy.Pass()
	pgtest.WaitFor(t, 60*time.Second, "it listens and leads again", reports(1))
}

func TestHostPoolConnectHooks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	is.NoErr(err)
	// The hook sets the user, as a hook for access tokens would. Without the hook, PostgreSQL rejects the connection.
	user := config.ConnConfig.User
	config.ConnConfig.User = "nobody_of_this_name"
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.User = user; return nil }
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `set application_name = 'hooked'`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(pool.Close)
	r := start(t, pool, runner.Options{PollInterval: 100 * time.Millisecond}, map[string]handler{"k": succeed})
	pgtest.Wait(t, "the pod listens and leads", func() bool {
		return metricValue(t, r, "trapeze_listen_connected") == 1 &&
			queryOne[int](t, pool, `select count(*) from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' and a.application_name = 'hooked' and a.datname = current_database()`) == 1
	})
}
