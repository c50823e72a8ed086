package pgembed

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

// A new server does not start while an exiting session still has the old server's shared memory attached. Sessions that used much memory
// take several milliseconds to exit.
func TestServerSharedMemoryInUse(t *testing.T) {
	is := is.New(t)
	s := start(t, Options{Settings: map[string]string{"shared_buffers": "256MB"}})
	ask(t, s.URL(), "CREATE TABLE kept AS SELECT n, repeat('x', 800) FROM generate_series(1, 200000) n")
	conn, err := pgx.Connect(t.Context(), s.URL())
	is.NoErr(err)
	defer conn.Close(context.Background())
	var session int
	is.NoErr(conn.QueryRow(t.Context(), "SELECT pg_backend_pid() FROM kept ORDER BY n LIMIT 1").Scan(&session))
	shm := sharedMemory(t, s)

	is.NoErr(syscall.Kill(session, syscall.SIGSTOP)) // otherwise, it would exit with its postmaster
	for _, pid := range s.PIDs() {
		if pid != session {
			is.NoErr(syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	eventually(t, "only the session is left", func() bool { return attached(t, shm) == "1" })
	is.NoErr(syscall.Kill(session, syscall.SIGKILL))
	for servesIn(session, s.home.pgdata()) {
	}
	is.True(attached(t, shm) != "1")
	is.NoErr(s.Restart(t.Context(), "immediate"))
	is.Equal(ask(t, s.URL(), "SELECT count(*)::text FROM kept"), "200000")
}

// sharedMemory returns the ID of the server's System V shared memory segment, which is the second number in line 7 of the PID file.
func sharedMemory(t *testing.T, s *Server) string {
	t.Helper()
	text, err := os.ReadFile(s.home.pgdata() + "/postmaster.pid")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(strings.Split(string(text), "\n")[6])[1]
}

// attached returns how many processes have the segment attached, or "" if it does not exist.
func attached(t *testing.T, shm string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[1] == shm {
			return f[6]
		}
	}
	return ""
}
