package pgembed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrInUse is returned by [Start] if DataDir is in use by another living process or by another Server in the same process.
var ErrInUse = errors.New("in use")

const (
	lockName      = "owner.lock"
	throwAwayName = "trapeze-pg-" // prefix of temporary homes
)

// home is a server's home directory. Its lock reserves the directory for this process.
type home struct {
	dir       string
	lock      *os.File
	throwAway bool
}

// openHome locks the home at o.DataDir, or creates a temporary one.
func openHome(o Options, as account) (*home, error) {
	if o.DataDir == "" {
		return newThrowAway(o, as)
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
		return nil, fmt.Errorf("%s is the data directory of another PostgreSQL: use an empty directory", dir)
	}
	if err := os.MkdirAll(dir, as.homeMode()); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o644) // #nosec G302 -- it contains only a PID
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		holder, _ := os.ReadFile(lock.Name())
		return nil, fmt.Errorf("data directory %s is %w by process %s: stop that process, or use another directory",
			dir, ErrInUse, strings.TrimSpace(string(holder)))
	}
	h := &home{dir: dir, lock: lock}
	if err := h.sign(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// newThrowAway creates a home that close removes.
func newThrowAway(o Options, as account) (*home, error) {
	dir, err := os.MkdirTemp(o.temporaryDir(as), throwAwayName)
	if err != nil {
		return nil, fmt.Errorf("create a temporary directory: %w", err)
	}
	h := &home{dir: dir, throwAway: true}
	fail := func(err error) (*home, error) { return nil, errors.Join(err, h.close()) }
	if err := os.Chmod(dir, as.homeMode()); err != nil {
		return fail(err)
	}
	// The lock file is given its final name only after it has been locked. Otherwise, the cleanup in another process could treat the owner
	// as dead.
	if h.lock, err = os.CreateTemp(dir, "new-lock-"); err != nil {
		return fail(err)
	}
	if err := syscall.Flock(int(h.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fail(fmt.Errorf("lock %s: %w", dir, err))
	}
	if err := h.sign(); err != nil {
		return fail(err)
	}
	if err := os.Rename(h.lock.Name(), filepath.Join(dir, lockName)); err != nil {
		return fail(err)
	}
	return h, nil
}

// homeMode returns a file mode that lets an unprivileged server traverse a home owned by root, but lets no other user list its contents.
func (a account) homeMode() fs.FileMode {
	if a.other {
		return 0o711
	}
	return 0o700
}

// temporaryDirs returns the directories that may contain temporary homes.
func (o Options) temporaryDirs() []string {
	dirs := []string{cmp.Or(o.TempDir, os.TempDir())}
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// temporaryDir returns the directory for a temporary home, which is the first candidate that the server's user can access.
func (o Options) temporaryDir(as account) string {
	for _, dir := range o.temporaryDirs() {
		if !as.other || openToAll(dir) {
			return dir
		}
	}
	return os.TempDir()
}

// openToAll reports whether every user may traverse dir and its parents.
func openToAll(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
		dir = filepath.Dir(dir)
	}
}

// sign writes this process's PID to the lock file. Other processes include the PID in their error messages.
func (h *home) sign() error {
	if err := h.lock.Truncate(0); err != nil {
		return err
	}
	_, err := h.lock.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return err
}

// close releases the home and removes it if it is temporary. The server must have exited.
func (h *home) close() error {
	var err error
	if h.throwAway {
		err = os.RemoveAll(h.dir)
	}
	if h.lock != nil {
		err = errors.Join(err, h.lock.Close()) // last, because the lock protects the directory until it is released
	}
	return err
}

func (h *home) pgdata() string { return filepath.Join(h.dir, "pgdata") }

// socketDir returns the directory of the Unix socket, or an empty string if the socket's path would be too long. A sockaddr_un holds 108
// bytes on Linux and 104 on macOS.
func (h *home) socketDir() string {
	dir := filepath.Join(h.dir, "s")
	if len(dir)+len("/.s.PGSQL.65535") > 103 {
		return ""
	}
	return dir
}

// openLog opens the log for appending, or starts a new one if the log is large.
func (h *home) openLog() (*os.File, error) {
	const large = 16 << 20
	name := filepath.Join(h.dir, "postgres.log")
	if info, err := os.Stat(name); err == nil && info.Size() > large {
		if err := os.Rename(name, name+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
}

// version returns the major version that wrote the data, or an empty string if there is no data.
func (h *home) version() string {
	text, err := os.ReadFile(filepath.Join(h.pgdata(), "PG_VERSION"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// checkAccess checks that the server's user can access the home, which a parent directory's permissions may prevent.
func (h *home) checkAccess(ctx context.Context, binDir string, as account) error {
	_, err := run(ctx, as, h.dir, filepath.Join(binDir, "postgres"), "--version")
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s, which runs PostgreSQL, cannot access %s: make its parent directories accessible (chmod a+x) or use another directory",
			as.name, h.dir)
	}
	return err
}

// initialise creates the data directory if it is missing. It uses a temporary name at first, so that an interrupted attempt never looks
// complete. The new server rejects all connections until secure has run.
//
// For a standby, the data directory is a base backup of the primary, and the server streams from the primary. The standby's superuser has
// the same password as the primary's.
func (h *home) initialise(ctx context.Context, binDir string, as account, o Options) error {
	if socket := h.socketDir(); socket != "" {
		if err := os.MkdirAll(socket, 0o700); err != nil {
			return err
		}
		if err := as.owns(socket); err != nil {
			return err
		}
	}
	if h.version() != "" {
		return nil
	}
	fresh := h.pgdata() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	if err := as.owns(fresh); err != nil {
		return err
	}
	switch {
	case o.StandbyOf != "":
		if err := h.backUp(ctx, binDir, as, o.StandbyOf, fresh); err != nil {
			return err
		}
		return os.Rename(fresh, h.pgdata())
	case o.Seed != "":
		return h.copySeed(ctx, as, o.Seed, fresh)
	}
	args := []string{"--pgdata=" + fresh, "--username=postgres", "--auth=reject", "--encoding=UTF8", "--locale=C", "--no-instructions"}
	if o.DataDir == "" { // a temporary home need not survive a machine crash
		args = append(args, "--no-sync")
	}
	out, err := run(ctx, as, fresh, filepath.Join(binDir, "initdb"), args...)
	if err != nil {
		return fmt.Errorf("initdb: %w; it printed:\n%s", err, out)
	}
	return os.Rename(fresh, h.pgdata())
}

// copySeed copies a stopped server's data and password. The password file comes last, because secure sets a new password if the file is
// missing.
func (h *home) copySeed(ctx context.Context, as account, seed, fresh string) error {
	from := &home{dir: seed}
	if out, err := run(ctx, as, fresh, "cp", "-R", from.pgdata()+"/.", fresh); err != nil {
		return fmt.Errorf("copy %s: %w; it printed:\n%s", from.pgdata(), err, out)
	}
	password, err := os.ReadFile(from.passwordFile())
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, h.pgdata()); err != nil {
		return err
	}
	return writePrivate(h.passwordFile(), string(password), account{})
}

// backUp makes a base backup of a primary in the directory fresh, and stores the primary's password for secure.
func (h *home) backUp(ctx context.Context, binDir string, as account, primary, fresh string) error {
	config, err := pgconn.ParseConfig(primary)
	if err != nil {
		return err
	}
	cmd, release := command(ctx, as, fresh, filepath.Join(binDir, "pg_basebackup"), "--dbname="+primary, "--pgdata="+fresh,
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	defer release()
	cmd.Env = append(cmd.Env, "PGPASSWORD="+config.Password) // pg_basebackup also writes the password to the recovery configuration
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w; it printed:\n%s", err, out)
	}
	return h.keepPassword(config.Password)
}
