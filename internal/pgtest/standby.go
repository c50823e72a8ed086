package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// Node is a server in a group that consists of a primary and its standbys. It is removed when the test ends.
//
//	primary := pgtest.Primary(t)        // empty: pgtest.Migrate(t, primary.URL())
//	standby := primary.AddStandby(t)    // a streaming hot standby
//	standby.LoseTail(t)                 // from now on, commits on the primary are lost ...
//	primary.Kill(t)
//	standby.Promote(t)                  // ... by this failover
//
// A test that needs a Node is skipped if DATABASE_URL is the only PostgreSQL available. AddStandby also needs pg_basebackup.
type Node struct {
	*pgembed.Server
	primary *Node // nil if the node was started as a primary
	number  int   // number of standbys
}

// Primary starts a server that standbys can stream from. settings lists PostgreSQL parameters, each as a name followed by its value.
func Primary(t testing.TB, settings ...string) *Node {
	t.Helper()
	return startNode(t, "", settings)
}

// AddStandby starts a standby of n and returns once the standby is streaming. Commits on n do not wait for the standby unless Synchronous
// is called.
func (n *Node) AddStandby(t testing.TB, settings ...string) *Node {
	t.Helper()
	if _, err := os.Stat(filepath.Join(n.BinDir(), "pg_basebackup")); err != nil {
		t.Skipf("pgtest: no pg_basebackup in %s: install PostgreSQL's client programs to run this test", n.BinDir())
	}
	n.number++
	name := fmt.Sprintf("standby%d", n.number)
	standby := startNode(t, n.URL()+"&application_name="+name, settings)
	standby.primary = n
	standby.CaughtUp(t)
	return standby
}

func startNode(t testing.TB, primary string, settings []string) *Node {
	t.Helper()
	all := pairs(t, settings)
	for name, value := range map[string]string{"wal_keep_size": "256MB", "wal_retrieve_retry_interval": "100ms"} {
		if all[name] == "" {
			all[name] = value
		}
	}
	server, err := pgembed.Start(t.Context(), pgembed.Options{TempDir: pgembed.MemoryDir(), Seed: SharedSeed(), StandbyOf: primary, Settings: all})
	if err != nil {
		if onlyTheirs(err) {
			t.Skipf("pgtest: this test needs servers that it can promote: %v", err)
		}
		t.Fatalf("pgtest: %v", err)
	}
	n := &Node{Server: server}
	t.Cleanup(func() {
		n.signal(syscall.SIGCONT)
		if err := server.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return n
}

// Synchronous makes every commit on n wait until one of its standbys has written it to disk.
func (n *Node) Synchronous(t testing.TB) {
	t.Helper()
	n.Exec(t, "alter system set synchronous_standby_names = '*'")
	n.Exec(t, "select pg_reload_conf()")
	Wait(t, "the primary has a synchronous standby", func() bool {
		return n.ask(t, "select exists (select from pg_stat_replication where sync_state = 'sync')") == "true"
	})
}

// CaughtUp waits until the standby is streaming and has replayed everything that its primary has written so far.
func (n *Node) CaughtUp(t testing.TB) {
	t.Helper()
	at := n.primary.ask(t, "select pg_current_wal_lsn()")
	Wait(t, "the standby has caught up", func() bool {
		return n.ask(t, "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) "+
			"and exists (select from pg_stat_wal_receiver where status = 'streaming')", at) == "true"
	})
}

// LoseTail stops streaming. The standby replays everything received so far. If it is promoted, later commits on its primary are lost.
func (n *Node) LoseTail(t testing.TB) {
	t.Helper()
	n.Exec(t, "alter system set primary_conninfo = ''")
	n.Exec(t, "select pg_reload_conf()")
	Wait(t, "the standby has ended streaming", func() bool {
		return n.ask(t, "select not exists (select from pg_stat_wal_receiver)") == "true"
	})
}

// Promote promotes the standby to a primary and waits until it accepts writes.
func (n *Node) Promote(t testing.TB) {
	t.Helper()
	n.Exec(t, "select pg_promote(true, 60)")
	Wait(t, "the standby has been promoted", func() bool { return !n.InRecovery(t) })
}

// InRecovery reports whether the server is a standby.
func (n *Node) InRecovery(t testing.TB) bool {
	t.Helper()
	return n.ask(t, "select pg_is_in_recovery()") == "true"
}

// Halt shuts the server down, which sends all its commits to the standbys first. Start restarts it.
func (n *Node) Halt(t testing.TB) {
	t.Helper()
	if len(n.PIDs()) > 0 {
		_ = syscall.Kill(n.PID(), syscall.SIGINT)
	}
	n.ended(t)
}

// Kill kills every server process simultaneously, like a power failure. Start restarts it.
func (n *Node) Kill(t testing.TB) {
	t.Helper()
	n.Freeze(t) // otherwise the postmaster could react to the death of its children
	n.signal(syscall.SIGKILL)
	n.ended(t)
}

func (n *Node) ended(t testing.TB) {
	t.Helper()
	WaitFor(t, time.Minute, "the server has ended", func() bool { return len(n.PIDs()) == 0 })
}

// Start restarts a server after Halt or Kill, on the same port and in the same role.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.Restart(t.Context(), "immediate"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Follow restarts the server on the same port as a standby of other, like a former primary after a switchover. A server that has commits
// that other lacks never catches up.
func (n *Node) Follow(t testing.TB, other *Node) {
	t.Helper()
	n.Demote(t)
	to, err := pgx.ParseConfig(other.URL())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	conninfo := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres password=%s application_name=rejoined", other.Port(), to.Password)
	n.Exec(t, "alter system set primary_conninfo = '"+conninfo+"'")
	n.Exec(t, "select pg_reload_conf()")
	n.primary = other
}

// Demote shuts the server down if it is running, and restarts it on the same port as a standby without a primary.
func (n *Node) Demote(t testing.TB) {
	t.Helper()
	n.Halt(t)
	pgdata := filepath.Join(n.Dir(), "pgdata")
	file := filepath.Join(pgdata, "standby.signal")
	owner, err := os.Stat(pgdata)
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err == nil {
		if sys, ok := owner.Sys().(*syscall.Stat_t); ok {
			err = os.Chown(file, int(sys.Uid), int(sys.Gid))
		}
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	n.Start(t)
}

// Freeze stops every process of the server until Unfreeze is called. Its sockets stay open but do not respond.
func (n *Node) Freeze(t testing.TB) {
	t.Helper()
	if len(n.PIDs()) > 0 {
		_ = syscall.Kill(n.PID(), syscall.SIGSTOP) // first, so that the postmaster cannot start new processes
	}
	n.signal(syscall.SIGSTOP)
}

// Unfreeze resumes the processes stopped by Freeze.
func (n *Node) Unfreeze(t testing.TB) {
	t.Helper()
	n.signal(syscall.SIGCONT)
}

func (n *Node) signal(sig syscall.Signal) {
	for _, pid := range n.PIDs() {
		_ = syscall.Kill(pid, sig)
	}
}

// Exec runs one statement on a new connection.
func (n *Node) Exec(t testing.TB, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), n.URL())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// ask runs a query and returns the result as text, or an empty string on error.
func (n *Node) ask(t testing.TB, sql string, args ...any) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), n.URL())
	if err != nil {
		return ""
	}
	defer conn.Close(t.Context())
	var v any
	if err := conn.QueryRow(t.Context(), sql, append([]any{pgx.QueryExecModeExec}, args...)...).Scan(&v); err != nil {
		return ""
	}
	return fmt.Sprint(v)
}

// URLs returns a connection string that lists several servers, which must have the same password. Further options, such as
// target_session_attrs, can be appended with "&".
func URLs(nodes ...*Node) string {
	hosts := make([]string, len(nodes))
	for i, n := range nodes {
		hosts[i] = fmt.Sprintf("127.0.0.1:%d", n.Port())
	}
	_, options, _ := strings.Cut(nodes[0].URL(), "?")
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?" + options
}
