package pgtest

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// poolerFile configures PgBouncer so that many clients share a few connections. As is the default in transaction mode, sessions are not reset
// between transactions.
const poolerFile = `[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = %d
`

// Pooler starts PgBouncer in transaction mode in front of the server at address, with at most size server connections. It returns the URL
// of the same database through PgBouncer, which is stopped when the test ends. If PgBouncer is not installed, the test is skipped.
func Pooler(t testing.TB, address string, size int) string {
	t.Helper()
	return PoolerInMode(t, address, "transaction", size)
}

// PoolerInMode is like [Pooler], in another of PgBouncer's pool modes, and with further lines of its configuration file.
func PoolerInMode(t testing.TB, address, mode string, size int, lines ...string) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if bin = "/usr/sbin/pgbouncer"; !exists(bin) {
			t.Skip("pgtest: pgbouncer is not installed: install it to run this test")
		}
	}
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	port := freePort(t)
	file := filepath.Join(t.TempDir(), "pgbouncer.ini")
	password := ""
	if config.Password != "" {
		password = " password='" + strings.ReplaceAll(config.Password, "'", "''") + "'"
	}
	text := fmt.Sprintf(poolerFile, config.Host, config.Port, config.User, password, port, mode, size) + strings.Join(lines, "\n")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	args := []string{"-q", file}
	if os.Geteuid() == 0 {
		args = []string{"-q", "-u", "nobody", file} // PgBouncer refuses to run as root, and reads its file before it switches users
	}
	var said bytes.Buffer
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("pgbouncer:\n%s", said.String())
		}
	})
	Wait(t, "pgbouncer listens", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	through := url.URL{Scheme: "postgres", User: url.User(config.User), Host: fmt.Sprintf("127.0.0.1:%d", port),
		Path: "/" + config.Database, RawQuery: "sslmode=disable"}
	return through.String()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
