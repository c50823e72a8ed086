package pgembed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/matryer/is"
)

func TestForeignDataDirectory(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	is.NoErr(os.WriteFile(dir+"/PG_VERSION", []byte("15\n"), 0o600))
	_, err := Start(t.Context(), Options{DataDir: dir})
	is.True(err != nil)
	entries, err := os.ReadDir(dir)
	is.NoErr(err)
	is.Equal(len(entries), 1) // nothing was added to the directory
}

func TestInaccessibleServerHome(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a server started by an ordinary user runs as that user, who can access all files")
	}
	is := is.New(t)
	parent := filepath.Dir(openDir(t))
	is.NoErr(os.Chmod(parent, 0o700))
	_, err := Start(t.Context(), Options{DataDir: filepath.Join(parent, "home")})
	is.True(err != nil && strings.Contains(err.Error(), "chmod a+x") && !strings.Contains(err.Error(), "user user")) // the error names the user and a remedy
}

func TestRestartKeepsWhatWasCommitted(t *testing.T) {
	for _, mode := range []string{"fast", "immediate"} {
		t.Run(mode, func(t *testing.T) {
			is := is.New(t)
			s := start(t, Options{})
			ask(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
			before := s.PID()
			is.NoErr(s.Restart(t.Context(), mode))
			is.True(s.PID() != before)
			is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42") // the URL still works, and the data was kept
		})
	}
}

func TestRestartAfterServerKill(t *testing.T) {
	is := is.New(t)
	s := start(t, Options{})
	ask(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	is.NoErr(syscall.Kill(s.PID(), syscall.SIGKILL))
	is.NoErr(s.Restart(t.Context(), "immediate"))
	is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42")
}

func TestFailedServerStart(t *testing.T) {
	is := is.New(t)
	t.Setenv("TMPDIR", filepath.Dir(openDir(t))) // a separate folder, so that leftover files can be counted
	_, err := Start(t.Context(), Options{Settings: map[string]string{"shared_buffers": "nonsense"}})
	is.True(err != nil)
	is.True(strings.Contains(err.Error(), "shared_buffers")) // the error contains the server's own message
	entries, err := os.ReadDir(os.TempDir())
	is.NoErr(err)
	is.Equal(len(entries), 0)
}

func TestServerAsUnprivilegedUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("all tests run as an ordinary user already")
	}
	is := is.New(t)
	as, err := accountFor("")
	is.NoErr(err)
	// go test builds its programs in a folder that other users cannot access.
	dir := openDir(t)
	is.NoErr(os.Mkdir(dir, 0o755))
	is.NoErr(os.Chmod(dir, 0o755))
	program := dir + "/pgembed.test"
	is.NoErr(exec.Command("cp", os.Args[0], program).Run())
	is.NoErr(os.Chmod(program, 0o755))

	o := startOwner(t, func(cmd *exec.Cmd) {
		cmd.Path, cmd.Dir = program, "/"
		cmd.Env = append(cmd.Env, "PGEMBED_OWN=", "PGEMBED_SEED=", "HOME=/nonexistent") // the seed belongs to root
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: as.uid, Gid: as.gid}}
	})
	is.Equal(ask(t, o.url, "SELECT current_user::text"), "postgres")
	is.NoErr(o.stdin.Close())
	is.NoErr(o.cmd.Wait())
	is.True(gone(o.pid))
}
