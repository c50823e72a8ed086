package pgembed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

func TestServerStopAfterOwnerDeath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux notifies a child when its parent dies")
	}
	is := is.New(t)
	o := startOwner(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "PGEMBED_OWN=") })
	is.True(!gone(o.pid))
	o.kill(t)
	eventually(t, "the server ends by itself", func() bool { return !servesIn(o.pid, o.dir+"/pgdata") })
	is.Equal(len(serversIn(o.dir+"/pgdata")), 0) // its sessions are gone too
	sweep(t)
	removed(t, o.dir) // the next start of any server removes the home
}

// The home is in a folder that only this test sweeps. In the default folder, any other process that starts a server could also remove it.
func TestOrphanedServerSweep(t *testing.T) {
	is := is.New(t)
	dir := filepath.Dir(openDir(t))
	sweepThere := func() {
		removeAbandoned(t.Context(), Options{TempDir: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	}
	o := startOwner(t, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "PGEMBED_OWN=", "PGEMBED_OUTLIVES=1", "PGEMBED_TEMP="+dir)
	})
	is.Equal(filepath.Dir(o.dir), dir)
	sweepThere()
	is.Equal(ask(t, o.url, "SELECT 'unharmed'"), "unharmed") // the owner is alive, so the server was not stopped
	o.kill(t)
	is.Equal(ask(t, o.url, "SELECT 'orphan'"), "orphan") // the server was not affected
	sweepThere()
	is.True(!servesIn(o.pid, o.dir+"/pgdata"))
	removed(t, o.dir)
}

// removed waits until a home is gone, because another process that is starting a server may still be removing it.
func removed(t *testing.T, dir string) {
	t.Helper()
	eventually(t, "its home is removed", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestOrphanedServerDataReuse(t *testing.T) {
	is := is.New(t)
	dir := openDir(t)
	o := startOwner(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "PGEMBED_OWN="+dir, "PGEMBED_OUTLIVES=1") })
	ask(t, o.url, "CREATE TABLE kept AS SELECT 42 AS n")

	_, err := Start(t.Context(), Options{DataDir: dir})
	is.True(errors.Is(err, ErrInUse)) // the owner is another process

	o.kill(t)
	is.Equal(ask(t, o.url, "SELECT n::text FROM kept"), "42") // the orphan still answers queries
	s := start(t, Options{DataDir: dir})
	is.True(!servesIn(o.pid, dir+"/pgdata"))
	is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42")
}

func TestStartAfterOwnerServerKill(t *testing.T) {
	is := is.New(t)
	dir := openDir(t)
	o := startOwner(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "PGEMBED_OWN="+dir, "PGEMBED_OUTLIVES=1") })
	ask(t, o.url, "CREATE TABLE kept AS SELECT 42 AS n")
	// A busy session does not notice immediately that its postmaster is gone, and keeps using the shared memory.
	busy, err := pgx.Connect(t.Context(), o.url)
	is.NoErr(err)
	defer busy.Close(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := busy.Exec(context.Background(), "DO $$ BEGIN LOOP END LOOP; END $$")
		ended <- err
	}()
	eventually(t, "the session is busy", func() bool {
		return ask(t, o.url, "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'") == "1"
	})
	is.NoErr(syscall.Kill(o.pid, syscall.SIGKILL))
	o.kill(t)

	s := start(t, Options{DataDir: dir})
	is.True(<-ended != nil)
	is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42")
}

func TestStalePIDFileReusedPID(t *testing.T) {
	if !canListProcesses {
		t.Skip("needs /proc")
	}
	is := is.New(t)
	dir := openDir(t)
	first := start(t, Options{DataDir: dir})
	is.NoErr(first.Stop())

	stranger := exec.Command("sleep", "60")
	stranger.SysProcAttr = first.as.attributes()
	is.NoErr(stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	stale := fmt.Sprintf("%d\n%s/pgdata\n1\n5432\n\n127.0.0.1\n\nready   \n", stranger.Process.Pid, dir)
	is.NoErr(os.WriteFile(dir+"/pgdata/postmaster.pid", []byte(stale), 0o600))
	is.NoErr(first.as.owns(dir + "/pgdata/postmaster.pid"))

	s := start(t, Options{DataDir: dir})
	is.Equal(ask(t, s.URL(), "SELECT 'up'"), "up")
	is.NoErr(stranger.Process.Signal(syscall.Signal(0))) // the stranger was left alone
}

func sweep(t *testing.T) {
	t.Helper()
	removeAbandoned(t.Context(), Options{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
}
