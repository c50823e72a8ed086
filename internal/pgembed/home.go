package pgembed

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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

// passwordName is the name of the password file read by libpq and pgx. The passfile parameter in [Server.URL] points to the file.
const passwordName = "pgpass"

// accessRules is the content of pg_hba.conf. Every user of the machine can connect to a loopback port, so access is protected by the
// password, which is in a file that only the owner can read.
const accessRules = `# Written by Trapeze at every start; do not edit.
local all         all              scram-sha-256
host  all         all 127.0.0.1/32 scram-sha-256
local replication all              scram-sha-256
host  replication all 127.0.0.1/32 scram-sha-256
`

func (h *home) passwordFile() string { return filepath.Join(h.dir, passwordName) }

// secure makes the server require a password. This also secures a data directory created by an earlier version, which admitted every user
// of the machine. The server must not be running.
func (h *home) secure(ctx context.Context, binDir string, as account) error {
	if err := h.ensurePassword(ctx, binDir, as); err != nil {
		return err
	}
	rules := filepath.Join(h.pgdata(), "pg_hba.conf")
	if now, err := os.ReadFile(rules); err == nil && string(now) == accessRules { // #nosec G304 -- our own home
		return nil
	}
	return writePrivate(rules, accessRules, as)
}

// ensurePassword sets the superuser's password unless the file already contains it. The file is written last; if it is missing, the next
// start sets a new password.
func (h *home) ensurePassword(ctx context.Context, binDir string, as account) error {
	info, err := os.Stat(h.passwordFile())
	switch {
	case err == nil && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("other accounts can read the password in %s: run chmod 0600 on it, or delete it to get a new password", h.passwordFile())
	case err == nil && info.Size() > 0:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	password := rand.Text()
	secret, err := scramSecret(password)
	if err != nil {
		return err
	}
	// Single-user mode needs no password and opens no port. The statement is sent through a pipe, because every user can read a process's
	// arguments. It must not appear in the log either.
	cmd, release := command(ctx, as, h.pgdata(), filepath.Join(binDir, "postgres"), "--single", "-D", h.pgdata(),
		"-c", "password_encryption=scram-sha-256", "-c", "log_statement=none", "-c", "log_min_error_statement=panic",
		"-c", "log_min_duration_statement=-1", "postgres")
	defer release()
	cmd.Stdin = strings.NewReader("ALTER ROLE postgres PASSWORD '" + secret + "'\n")
	// In single-user mode, PostgreSQL exits with 0 even if the statement fails.
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("ERROR:")) {
		return fmt.Errorf("set the password of the superuser: %w; it printed:\n%s", orClean(err), out)
	}
	return h.keepPassword(password)
}

// scramSecret returns the verifier that PostgreSQL stores for a password (RFC 5803). PostgreSQL's default of 4,096 iterations slows down
// attacks on passwords that people choose, but a password of 130 random bits cannot be guessed. With one iteration, a new connection takes
// no longer than without a password; 4,096 iterations take 6.5 ms.
func scramSecret(password string) (string, error) {
	const iterations = 1
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // Read never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		_, _ = mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}

func (h *home) keepPassword(password string) error {
	text := fmt.Sprintf("127.0.0.1:*:*:*:%s\nlocalhost:*:*:*:%[1]s\n", password)
	return writePrivate(h.passwordFile(), text, account{})
}

// writePrivate atomically replaces a file with one that is owned by the account as and that only its owner can read.
func writePrivate(name, text string, as account) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".new-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = as.owns(f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// pidFile contains the relevant parts of a data directory's postmaster.pid.
type pidFile struct {
	pid   int
	ready bool // whether the server accepts connections
}

// readPIDFile reads postmaster.pid. Line 1 contains the PID and line 8 the status (since PostgreSQL 10; see src/include/utils/pidfile.h in
// its source). If lines are missing, the server is not ready.
func readPIDFile(pgdata string) (pidFile, error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 {
		return pidFile{}, fmt.Errorf("read %s/postmaster.pid: no process id in %q", pgdata, lines[0])
	}
	return pidFile{pid: pid, ready: len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"}, nil
}

// takeOver stops all PostgreSQL processes that are still using this home. The caller holds the lock, so the processes' owner must be dead.
//
// The postmaster is stopped first, because it then ends the sessions itself.
func (h *home) takeOver(ctx context.Context, logger *slog.Logger) error {
	pgdata := h.pgdata()
	file, err := readPIDFile(pgdata)
	if err == nil && servesIn(file.pid, pgdata) {
		logger.WarnContext(ctx, "stopping an orphaned postgres", "server_pid", file.pid, "dir", h.dir)
		if err := stopStranger(ctx, file.pid, pgdata); err != nil {
			return err
		}
	}
	// Sessions whose postmaster was killed exit once they notice its death. Until then, no new server can start, because the sessions are
	// still using the shared memory.
	for _, pid := range serversIn(pgdata) {
		logger.WarnContext(ctx, "stopping an orphaned postgres session", "server_pid", pid, "dir", h.dir)
		if err := stopStranger(ctx, pid, pgdata); err != nil {
			return err
		}
	}
	return h.dropStalePIDFile()
}

// dropStalePIDFile removes a PID file whose PID now belongs to another process. PostgreSQL ignores a stale file only if no process has that
// PID, and containers soon reuse small PIDs.
func (h *home) dropStalePIDFile() error {
	file, err := readPIDFile(h.pgdata())
	if err != nil || !canListProcesses || !isAlive(file.pid) {
		return nil
	}
	// takeOver has verified that no PostgreSQL process is using this directory, which is the only case that the file protects against.
	return os.Remove(filepath.Join(h.pgdata(), "postmaster.pid"))
}

// stopStranger stops a server process that is not a child of this process.
func stopStranger(ctx context.Context, pid int, pgdata string) error {
	// On Linux, the handle stays bound to this process even if its PID is reused. The handle is therefore opened before servesIn checks
	// that the process may be stopped.
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	defer p.Release()
	for _, step := range stopSteps {
		if !servesIn(pid, pgdata) {
			return nil
		}
		if err := p.Signal(step.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop orphaned postgres %d: %w", pid, err)
		}
		if err := waitGone(ctx, pid, pgdata, step.within); err != nil {
			return fmt.Errorf("stop orphaned postgres %d: %w", pid, err)
		}
	}
	if servesIn(pid, pgdata) {
		return fmt.Errorf("stop orphaned postgres %d: it does not exit", pid)
	}
	return nil
}

// waitGone waits for the process to exit, but no longer than within. It returns an error only if ctx is done.
func waitGone(ctx context.Context, pid int, pgdata string, within time.Duration) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	enough := time.After(within)
	for servesIn(pid, pgdata) {
		select {
		case <-tick.C:
		case <-enough:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// removeAbandoned removes temporary homes of this user whose owners were killed, and stops servers that are still running in them. Failures
// are harmless, because the next start retries.
func removeAbandoned(ctx context.Context, o Options) {
	for _, parent := range o.temporaryDirs() {
		homes, _ := filepath.Glob(filepath.Join(parent, throwAwayName+"*"))
		for _, dir := range homes {
			if err := removeIfAbandoned(ctx, dir, o.Logger); err != nil {
				o.Logger.WarnContext(ctx, "could not remove an abandoned postgres", "dir", dir, "err", err)
			}
		}
	}
}

func removeIfAbandoned(ctx context.Context, dir string, logger *slog.Logger) error {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil
	}
	if owner, ok := ownerOf(dir); !ok || int(owner.uid) != os.Geteuid() {
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// The owner has died or is about to create the lock.
		if time.Since(info.ModTime()) < time.Minute {
			return nil
		}
		return os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	h := &home{dir: dir, lock: lock, throwAway: true}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return lock.Close() // the owner is alive
	}
	if err := h.takeOver(ctx, logger); err != nil {
		return errors.Join(err, lock.Close())
	}
	logger.InfoContext(ctx, "removing an abandoned postgres", "dir", dir)
	return h.close()
}

// isAlive reports whether a process with this PID exists.
func isAlive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
