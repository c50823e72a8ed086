package runner_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// address is a network address that can be pointed at one server after another, like a DNS name or a proxy. Open connections remain with
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
		return one[string](t, pool, `show default_transaction_read_only`) == "on"
	})
}

// narrow returns a pool with a single connection.
func narrow(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// sessions counts the open connections of the pods' own pools to a server.
const sessions = `select count(*) from pg_stat_activity where application_name = 'trapeze'`

func TestAPodLeavesAFormerPrimaryThatKeepsItsConnectionsOpen(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	former := pgtest.Primary(t)
	pgtest.Migrate(t, former.URL())
	former.Exec(t, `create table written (n bigint)`)
	next := former.AddStandby(t)
	where := leadsTo(t, former)
	wait, open := gate(t)
	r := start(t, pgtest.Connect(t, where.url()), runner.Options{HeartbeatEvery: 2 * time.Second, LeaseFor: 8 * time.Second}, map[string]does{
		"k": nothing,
		"long": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			<-wait
			return new(runner.Outcome).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into written values ($1)`, j.ID())
				return err
			}), nil
		},
	})
	ended(t, r, enqueue(t, r, of("k")))
	long := begun(t, r, of("long"))
	then := pgtest.Connect(t, next.URL())
	const listens = `select count(*) from pg_stat_activity where application_name = 'trapeze-listen'`
	const locks = `select count(*) from pg_locks where locktype = 'advisory' and objid = 420021`
	before := pgtest.Connect(t, former.URL())
	pgtest.Wait(t, "the pod listens and leads", func() bool { return one[int](t, before, listens) > 0 && one[int](t, before, locks) > 0 })

	readOnly(t, former)
	next.CaughtUp(t)
	next.Promote(t)
	where.lead(next)
	began := time.Now()
	pgtest.WaitFor(t, 30*time.Second, "a job is accepted and runs", func() bool {
		made, err := r.Enqueue(t.Context(), of("k"))
		if err != nil {
			return false
		}
		ended(t, r, made.ID)
		return true
	})
	t.Logf("jobs ran again %s after the change", time.Since(began))
	is.True(time.Since(began) < 8*time.Second)
	open()
	is.Equal(ended(t, r, long).State, job.Succeeded) // it was running during the failover and writes through the host's pool
	is.Equal(one[int](t, then, `select count(*) from written`), 1)
	pgtest.Wait(t, "the pod has no connection left to the former primary", func() bool { return one[int](t, before, sessions) == 0 })
	pgtest.Wait(t, "the pod listens and leads where writes are accepted", func() bool { return one[int](t, then, listens) > 0 && one[int](t, then, locks) > 0 })
	is.Equal(one[int](t, before, locks), 0)
}

func TestAHandlersReadOnlyTransactionEndsItsJobAtOnceAndKeepsItsConnection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := narrow(t, pgtest.URL(t))
	var calls atomic.Int64
	r := start(t, pool, runner.Options{}, map[string]does{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		return new(runner.Outcome).InTx(func(ctx context.Context, tx pgx.Tx) error {
			calls.Add(1)
			_, err := tx.Exec(ctx, `set transaction read only`)
			if err == nil {
				_, err = tx.Exec(ctx, `create table never (n int)`)
			}
			return err
		}), nil
	}})
	before := one[int](t, pool, `select pg_backend_pid()`)
	j := ended(t, r, enqueue(t, r, of("k")))
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(message(j), "25006"))
	is.Equal(calls.Load(), int64(1))
	is.Equal(one[int](t, pool, `select pg_backend_pid()`), before)
}

func TestTheHooksOfTheHostsPoolMakeTheDirectConnectionsToo(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	is.NoErr(err)
	// The hook sets the user, as a hook for access tokens would. Without it, PostgreSQL rejects the connection.
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
	r := start(t, pool, runner.Options{PollEvery: 100 * time.Millisecond}, map[string]does{"k": nothing})
	pgtest.Wait(t, "the pod listens and leads", func() bool {
		return value(t, r, "trapeze_listen_connected") == 1 &&
			one[int](t, pool, `select count(*) from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' and a.application_name = 'hooked' and a.datname = current_database()`) == 1
	})
}

func TestAPodThatIsCutOffReportsNeitherTheLeadNorWakeUps(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	r := start(t, pgtest.Connect(t, proxy.URL()), runner.Options{PollEvery: 2 * time.Second, LeaseFor: time.Second}, map[string]does{"k": nothing})
	reports := func(want float64) func() bool {
		return func() bool {
			return value(t, r, "trapeze_listen_connected") == want && value(t, r, "trapeze_leader") == want
		}
	}
	pgtest.WaitFor(t, 40*time.Second, "it listens and leads", reports(1))
	proxy.Refuse()
	proxy.Stall() // the connections stay half-open
	pgtest.WaitFor(t, 30*time.Second, "it reports neither", reports(0))
	proxy.Reset() // otherwise the session would keep the leader lock on the server
	proxy.Pass()
	pgtest.WaitFor(t, 60*time.Second, "it listens and leads again", reports(1))
}
