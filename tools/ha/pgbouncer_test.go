//go:build ha && linux

package ha

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

const pgbouncerFile = `[databases]
* = host=127.0.0.1 port=%d user=app password=app
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 40
max_client_conn = 500
server_login_retry = 1
`

// pgbouncer is a PgBouncer in transaction mode in front of a server.
type pgbouncer struct {
	t    *testing.T
	file string
	port int
	now  *process
}

func startPgbouncer(t *testing.T, server int) *pgbouncer {
	t.Helper()
	p := &pgbouncer{t: t, file: filepath.Join(folder(t), "pgbouncer.ini"), port: freePort(t)}
	text := fmt.Sprintf(pgbouncerFile, server, p.port)
	if err := os.WriteFile(p.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p.start()
	return p
}

// start starts pgbouncer and waits until it accepts connections.
func (p *pgbouncer) start() time.Time {
	p.t.Helper()
	p.now = start(p.t, "pgbouncer", true, nil, "pgbouncer", p.file)
	pgtest.Wait(p.t, "pgbouncer listens", func() bool { return listens(p.port) })
	return time.Now()
}

// restart stops pgbouncer and all its sessions immediately, and then restarts it.
func (p *pgbouncer) restart() time.Time {
	p.t.Helper()
	p.now.stop(syscall.SIGTERM) // with version 1.18, SIGTERM stops pgbouncer immediately, whereas SIGINT would wait for transactions
	return p.start()
}
