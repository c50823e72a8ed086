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
	"github.com/trapeze-run/trapeze/internal/testdb"
)

// Node is one server of a primary and its standbys. It ends with its test.
//
//	primary := pgtest.Primary(t)        // empty: pgtest.Migrate(t, primary.URL())
//	standby := primary.AddStandby(t)    // streams; a hot standby
//	standby.LoseTail(t)                 // what the primary commits from now on is lost ...
//	primary.Kill(t)
//	standby.Promote(t)                  // ... by this failover
//
// A test that needs it is skipped on a machine without the server programs.
type Node struct {
	*pgembed.Server
	primary *Node // nil: it began as a primary
	number  int   // of standbys
}

// Primary starts a server that standbys can stream from. The settings are PostgreSQL's, as name and value in turn.
func Primary(t testing.TB, settings ...string) *Node {
	t.Helper()
	return startNode(t, "", settings)
}

// AddStandby starts a standby of n and returns when it streams. Commits on n do not wait for it; see Synchronous.
func (n *Node) AddStandby(t testing.TB, settings ...string) *Node {
	t.Helper()
	if _, err := os.Stat(filepath.Join(n.BinDir(), "pg_basebackup")); err != nil {
		t.Skipf("pgtest: no pg_basebackup in %s: install PostgreSQL's client programs to have this test run", n.BinDir())
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
	server, err := pgembed.Start(t.Context(), pgembed.Options{TempDir: testdb.Dir(), StandbyOf: primary, Settings: all})
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

// Synchronous has every commit on n wait until one of its standbys has written it to disk.
func (n *Node) Synchronous(t testing.TB) {
	t.Helper()
	n.Exec(t, "alter system set synchronous_standby_names = '*'")
	n.Exec(t, "select pg_reload_conf()")
	Wait(t, "the primary has a synchronous standby", func() bool {
		return n.ask(t, "select exists (select from pg_stat_replication where sync_state = 'sync')") == "true"
	})
}

// CaughtUp returns when the standby streams and has replayed what its primary has written by now.
func (n *Node) CaughtUp(t testing.TB) {
	t.Helper()
	at := n.primary.ask(t, "select pg_current_wal_lsn()")
	Wait(t, "the standby has caught up", func() bool {
		return n.ask(t, "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) "+
			"and exists (select from pg_stat_wal_receiver where status = 'streaming')", at) == "true"
	})
}

// LoseTail ends streaming: the standby replays what it has received, and Promote loses what its primary commits from now on.
func (n *Node) LoseTail(t testing.TB) {
	t.Helper()
	n.Exec(t, "alter system set primary_conninfo = ''")
	n.Exec(t, "select pg_reload_conf()")
	Wait(t, "the standby has ended streaming", func() bool {
		return n.ask(t, "select not exists (select from pg_stat_wal_receiver)") == "true"
	})
}

// Promote makes the standby a primary, which accepts writes when it returns.
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

// Halt shuts the server down, with all that it had committed sent to its standbys; Start starts it again.
func (n *Node) Halt(t testing.TB) {
	t.Helper()
	if len(n.PIDs()) > 0 {
		_ = syscall.Kill(n.PID(), syscall.SIGINT)
	}
	n.ended(t)
}

// Kill ends every process of the server at once, as a power failure does; Start starts it again.
func (n *Node) Kill(t testing.TB) {
	t.Helper()
	n.Freeze(t) // else the postmaster ends its children itself
	n.signal(syscall.SIGKILL)
	n.ended(t)
}

func (n *Node) ended(t testing.TB) {
	t.Helper()
	WaitFor(t, time.Minute, "the server has ended", func() bool { return len(n.PIDs()) == 0 })
}

// Start starts a server again that Halt or Kill ended, on the same port and as what it was.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.Restart(t.Context(), "immediate"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Follow restarts the server as a standby of other, on the same port: the former primary after a switchover. One that has
// committed more than other has is a standby that never catches up.
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

// Demote shuts the server down, unless it has ended, and starts it as a standby of no other, on the same port.
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

// Freeze stops every process of the server until Thaw: its sockets stay open and answer nothing.
func (n *Node) Freeze(t testing.TB) {
	t.Helper()
	if len(n.PIDs()) > 0 {
		_ = syscall.Kill(n.PID(), syscall.SIGSTOP) // first, so that nothing new begins
	}
	n.signal(syscall.SIGSTOP)
}

// Thaw ends Freeze.
func (n *Node) Thaw(t testing.TB) {
	t.Helper()
	n.signal(syscall.SIGCONT)
}

func (n *Node) signal(sig syscall.Signal) {
	for _, pid := range n.PIDs() {
		_ = syscall.Kill(pid, sig)
	}
}

// Exec runs one statement on a connection of its own.
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

// ask returns the text of a value, or "" while the server does not answer.
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

// URLs is the address of the same database on several servers, which have the same password. Append options with "&", target_session_attrs for example.
func URLs(nodes ...*Node) string {
	hosts := make([]string, len(nodes))
	for i, n := range nodes {
		hosts[i] = fmt.Sprintf("127.0.0.1:%d", n.Port())
	}
	_, options, _ := strings.Cut(nodes[0].URL(), "?")
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?" + options
}
