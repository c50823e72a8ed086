//go:build ha && linux

package ha

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestFivePatroniSwitchovers(t *testing.T) {
	need(t, "etcd", "patroni")
	c := startCluster(t)
	url := address(c.members[0].port, c.members[1].port) + readWrite
	tr := begin(t, "DATABASE_URL="+url)
	for n := range 5 {
		c.replicates()
		tr.fault(fmt.Sprintf("Patroni switchover %d of 5, both hosts in the address", n+1), handlersWithin, everyPodWithin, func() time.Time {
			next := c.switchover()
			return acceptsWrites(t, address(next.port), next.port)
		})
	}
	tr.judge(url)
}

func TestPatroniHAProxyShutdownSessions(t *testing.T) {
	behindHAProxy(t, "on-marked-down shutdown-sessions")
}

func TestPatroniHAProxyKeptSessions(t *testing.T) {
	behindHAProxy(t, "")
}

// behindHAProxy performs three switchovers. HAProxy notices each switchover only at its next health checks. Until then, the pods cannot
// reach the new primary.
func behindHAProxy(t *testing.T, option string) {
	need(t, "etcd", "patroni", "haproxy")
	c := startCluster(t)
	url := address(c.startHAProxy(option))
	tr := begin(t, "DATABASE_URL="+url)
	name := option
	if name == "" {
		name = "sessions kept"
	}
	for n := range 3 {
		c.replicates()
		tr.fault(fmt.Sprintf("Patroni switchover %d of 3 behind HAProxy, %s", n+1, name), everyPodWithin, everyPodWithin, func() time.Time {
			return acceptsWrites(t, url, c.switchover().port)
		})
	}
	tr.judge(url)
}

// settings contains the PostgreSQL settings for servers that a scenario starts itself.
var settings = []string{"max_connections", "200", "wal_keep_size", "1GB", "wal_receiver_status_interval", "1s"}

// pair starts a primary and its standby.
func pair(t *testing.T) (primary, standby *pgtest.Node) {
	t.Helper()
	primary = pgtest.Primary(t, settings...)
	prepare(t, primary.URL())
	return primary, primary.AddStandby(t, settings...)
}

// promote promotes a standby to primary and returns when it accepts writes.
func promote(t *testing.T, standby *pgtest.Node) time.Time {
	t.Helper()
	standby.Exec(t, "select pg_promote(false)")
	return acceptsWrites(t, address(standby.Port()), standby.Port())
}

func TestKilledPrimaryWithSynchronousStandby(t *testing.T) {
	primary, standby := pair(t)
	primary.Synchronous(t)
	url := address(primary.Port(), standby.Port()) + readWrite
	tr := begin(t, "DATABASE_URL="+url)
	tr.fault("primary killed, synchronous standby promoted, both hosts in the address", handlersWithin, everyPodWithin, func() time.Time {
		primary.Kill(t)
		return promote(t, standby)
	})
	tr.judge(url)
}

func TestAsyncStandbyPromoted(t *testing.T) {
	withoutTheLastSeconds(t, 0)
}

func TestAsyncStandbyPromotedPodsKilled(t *testing.T) {
	withoutTheLastSeconds(t, 2)
}

// withoutTheLastSeconds promotes a standby that lacks the last three seconds of commits. Only submissions that were confirmed in these
// seconds may be lost. No ID assigned in these seconds may be assigned again, even if pods that have reserved IDs are killed.
func withoutTheLastSeconds(t *testing.T, killed int) {
	primary, standby := pair(t)
	url := address(primary.Port(), standby.Port()) + readWrite
	tr := begin(t, "DATABASE_URL="+url)
	name := "asynchronous standby promoted without the last 3 s"
	if killed > 0 {
		name += fmt.Sprintf(", %d pods killed", killed)
		tr.mayDie = killed
	}
	goalOfEvery := everyPodWithin
	if killed > 0 {
		goalOfEvery = 20 * time.Second // new pod processes have to start first
	}
	tr.fault(name, handlersWithin, goalOfEvery, func() time.Time {
		endOfLoggedIDs(t, primary)
		lost := time.Now() // everything confirmed before this time reaches the standby
		standby.CaughtUp(t)
		standby.LoseTail(t)
		tr.load.fanOut(t.Context(), "lost", 1500)
		wait(t.Context(), 3*time.Second)
		primary.Kill(t)
		for _, p := range tr.pods[:killed] {
			p.kill()
		}
		accepts := promote(t, standby)
		tr.excused = func(one accepted) bool { return one.at.After(lost) && one.at.Before(accepts) }
		for _, p := range tr.pods[:killed] {
			p.start(t)
		}
		for _, p := range tr.pods[:killed] {
			p.ready(t)
		}
		tr.load.fanOut(t.Context(), "after", 1500)
		return accepts
	})
	tr.judge(url)
}

// endOfLoggedIDs uses up the block of IDs that the write-ahead log already covers. PostgreSQL logs sequence values 32 at a time in advance,
// so a standby that has lost the end of the log reassigns only IDs beyond that block.
func endOfLoggedIDs(t *testing.T, primary *pgtest.Node) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address(primary.Port()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var last int64
	for left := 1; left > 0; {
		if err := conn.QueryRow(t.Context(), `select nextval('trapeze.job_ids')`).Scan(&last); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(t.Context(), `select log_cnt from trapeze.job_ids`).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPostgresRestartBehindPgbouncer(t *testing.T) {
	need(t, "pgbouncer")
	primary := pgtest.Primary(t, settings...)
	prepare(t, primary.URL())
	bouncer := startPgbouncer(t, primary.Port())
	tr := begin(t, "DATABASE_URL="+address(bouncer.port), "TRAPEZE_DATABASE_DIRECT_URL="+address(primary.Port()))
	tr.fault("PostgreSQL down for 4 s behind pgbouncer, server_login_retry=1", 3*time.Second, everyPodWithin+time.Second, func() time.Time {
		primary.Halt(t)
		wait(t.Context(), 4*time.Second)
		primary.Start(t)
		return acceptsWrites(t, address(primary.Port()), 0)
	})
	tr.judge(address(primary.Port()))
}

func TestPgbouncerRestarted(t *testing.T) {
	need(t, "pgbouncer")
	primary := pgtest.Primary(t, settings...)
	prepare(t, primary.URL())
	bouncer := startPgbouncer(t, primary.Port())
	tr := begin(t, "DATABASE_URL="+address(bouncer.port), "TRAPEZE_DATABASE_DIRECT_URL="+address(primary.Port()))
	tr.fault("pgbouncer restarted", handlersWithin, everyPodWithin, bouncer.restart)
	tr.judge(address(primary.Port()))
}

// through starts a proxy that connects each new client to the server that node holds at that moment. The connection then stays with the
// server.
func through(t *testing.T, node *atomic.Pointer[pgtest.Node]) (url string) {
	t.Helper()
	proxy, err := faultnet.StartTo(func() (string, string) { return "tcp", fmt.Sprintf("127.0.0.1:%d", node.Load().Port()) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", appRole, password, proxy.Addr(), database)
}

func TestAddressBrieflyOnStandby(t *testing.T) {
	primary, standby := pair(t)
	var node atomic.Pointer[pgtest.Node]
	node.Store(primary)
	url := through(t, &node)
	tr := begin(t, "DATABASE_URL="+url)
	tr.fault("the address leads to a standby for 8 s", handlersWithin+2*time.Second, everyPodWithin+time.Second, func() time.Time {
		standby.CaughtUp(t)
		primary.Halt(t)
		promote(t, standby)
		primary.Follow(t, standby) // the old address now leads to a server whose new sessions are read-only
		wait(t.Context(), 8*time.Second)
		node.Store(standby)
		return time.Now()
	})
	tr.judge(address(standby.Port()))
}

// During a role change in a managed service, sessions on the old primary may stay open and find themselves on a standby. PostgreSQL itself
// would close them, so the test simulates the situation: a setting makes the old primary refuse writes, and its pg_is_in_recovery() is
// replaced with a version that returns true.
func TestOldPrimaryLeftReadOnly(t *testing.T) {
	primary, standby := pair(t)
	var node atomic.Pointer[pgtest.Node]
	node.Store(primary)
	url := through(t, &node)
	tr := begin(t, "DATABASE_URL="+url)
	tr.fault("the old primary stays up read-only, its sockets open", handlersWithin+2*time.Second, everyPodWithin+time.Second, func() time.Time {
		primary.Exec(t, "alter system set default_transaction_read_only = on")
		primary.Exec(t, "select pg_reload_conf()")
		pgtest.Wait(t, "the old primary refuses writes", func() bool { return !writes(t.Context(), address(primary.Port()), 0) })
		standby.CaughtUp(t)
		accepts := promote(t, standby)
		node.Store(standby)
		saysInRecovery(t, primary)
		return accepts
	})
	tr.judge(address(standby.Port()))
}

// saysInRecovery makes pg_is_in_recovery() return true in the pods' database.
func saysInRecovery(t *testing.T, n *pgtest.Node) {
	t.Helper()
	execute(t, n.URL(), database, "set default_transaction_read_only = off", "set allow_system_table_mods = on",
		"create or replace function pg_catalog.pg_is_in_recovery() returns boolean language sql volatile strict parallel safe as 'select true'")
}

func TestAllBackendsFrozen(t *testing.T) {
	primary := pgtest.Primary(t, settings...)
	prepare(t, primary.URL())
	url := address(primary.Port())
	tr := begin(t, "DATABASE_URL="+url)
	tr.fault("all backends frozen for 20 s", 10*time.Second, 15*time.Second, func() time.Time {
		primary.Freeze(t)
		wait(t.Context(), 20*time.Second)
		primary.Unfreeze(t)
		return time.Now()
	})
	tr.judge(url)
}
