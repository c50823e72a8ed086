package pgembed

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/matryer/is"
)

// record is a log that a test reads while the server writes it.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), what)
}

func TestKilledEmbeddedServer(t *testing.T) {
	is := is.New(t)
	s := start(t, Options{})
	log := &record{}
	s.logger = slog.New(slog.NewTextHandler(log, nil))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.KeepRunning(t.Context())
	}()
	ask(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS n")

	killed := s.PID()
	is.NoErr(syscall.Kill(killed, syscall.SIGKILL))
	eventually(t, "a new postmaster", func() bool { return log.count("postgres started again") == 1 })
	is.True(s.PID() != killed)
	is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42")
	is.Equal(log.count("postgres exited: starting it again"), 1)
	is.Equal(log.count("database system is ready to accept connections"), 1) // the end of the server's log

	// A server that cannot start is tried again, and the failure is logged once.
	conf := filepath.Join(s.home.pgdata(), "postgresql.conf")
	saved, err := os.ReadFile(conf)
	is.NoErr(err)
	is.NoErr(os.WriteFile(conf, []byte("wal_level = nonsense\n"), 0o600))
	is.NoErr(syscall.Kill(s.PID(), syscall.SIGKILL))
	eventually(t, "the failure", func() bool { return log.count("postgres does not start again") == 1 })
	is.True(log.count("nonsense") > 0) // the reason
	is.NoErr(os.WriteFile(conf, saved, 0o600))
	eventually(t, "another postmaster", func() bool { return log.count("postgres started again") == 2 })
	is.Equal(log.count("postgres does not start again"), 1)
	is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42")

	is.NoErr(s.Stop())
	<-ended // Stop ends it
	is.Equal(log.count("postgres exited"), 2)
}
