package pgembed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// These are the postmaster's signals, as described in the postgres manual page. SIGINT terminates all sessions and shuts down. SIGQUIT
// aborts immediately, and the next start has to recover.
const (
	fastSignal = syscall.SIGINT
	quitSignal = syscall.SIGQUIT
)

// stopSteps lists the signals that stop a server, increasingly forceful, and how long each has to take effect.
var stopSteps = []struct {
	sig    syscall.Signal
	within time.Duration
}{{fastSignal, fastWithin}, {quitSignal, quitWithin}, {syscall.SIGKILL, quitWithin}}

// process is a postmaster started by this process.
type process struct {
	pid  int
	done chan struct{} // closed once the process has exited and been waited for
	err  error         // the exit error; valid after done is closed
}

// command returns the command that starts the postmaster. All settings are passed as arguments, so that a permanent data directory does not
// retain settings from an earlier run.
func (s *Server) command(log *os.File) *exec.Cmd {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": s.home.socketDir(),
		"max_connections":         "200",
		"fsync":                   "on",
		"synchronous_commit":      "on",
		"logging_collector":       "off",
		"log_destination":         "stderr",
		"log_line_prefix":         "%m [%p] ",
		"timezone":                "UTC",
	}
	maps.Copy(settings, s.extra)
	args := []string{"-D", s.home.pgdata()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd := exec.Command(filepath.Join(s.binDir, "postgres"), args...)
	cmd.Dir = s.home.pgdata()
	cmd.Env = environment(s.home.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = s.as.attributes()
	if s.tied {
		dieWithOwner(cmd.SysProcAttr)
	}
	return cmd
}

// environment returns the current environment, with the variables that affect PostgreSQL removed or replaced.
func environment(home string) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "PG") || strings.HasPrefix(e, "LC_") || strings.HasPrefix(e, "LANG")
	})
	return append(env, "LC_ALL=C", "HOME="+home)
}

// launch starts cmd and waits in the background for it to exit.
//
// The kernel sends its signal when the thread that started the child ends, not when the parent process dies. A goroutine therefore stays
// locked to the thread from before the start until after the exit. Otherwise, servers would be killed at random or never (see
// TestServerStopAfterOwnerDeath).
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// waitReady waits until the server accepts connections. Like pg_ctl, it reads the server's PID file, because a different server might be
// listening on the port.
func (p *process) waitReady(ctx context.Context, pgdata string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if f, err := readPIDFile(pgdata); err == nil && f.pid == p.pid && f.ready {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("the server exited at once: %w", orClean(p.err))
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w", context.Cause(ctx))
		}
	}
}

// stop sends sig, followed by increasingly forceful signals, and waits until the process has exited.
func (p *process) stop(sig syscall.Signal) error {
	steps := stopSteps
	if sig == quitSignal {
		steps = steps[1:]
	}
	for _, step := range steps {
		select {
		case <-p.done:
			return nil
		default:
		}
		// The process has not been reaped yet, so its PID is still valid.
		if err := syscall.Kill(p.pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal server %d: %w", p.pid, err)
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(step.within):
		}
	}
	return fmt.Errorf("server %d does not exit", p.pid)
}

// run runs a short command as the given user, and returns its output.
func run(ctx context.Context, as account, dir, name string, args ...string) (string, error) {
	cmd, release := command(ctx, as, dir, name, args...)
	defer release()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// command returns a short-lived command that runs as the given user. Call release when it has exited.
func command(ctx context.Context, as account, dir, name string, args ...string) (cmd *exec.Cmd, release func()) {
	runtime.LockOSThread() // see launch
	cmd = exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = environment(dir)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = as.attributes()
	dieWithOwner(cmd.SysProcAttr)
	return cmd, runtime.UnlockOSThread
}

func orClean(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// account is the user that runs the server. PostgreSQL refuses to run as root, so root starts it as a different user.
type account struct {
	name     string
	uid, gid uint32
	other    bool // whether it differs from the current user
}

// attributes returns the process attributes for a child that runs as a. The child starts a new session. Otherwise, Ctrl-C in a terminal,
// which is sent to the whole process group, would stop the server while its owner is still shutting down.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.other {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// owns makes the account the owner of path.
func (a account) owns(path string) error {
	if !a.other {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// accountFor returns the user that a server runs as: the existing data's owner, if there is any data, or else the current user. If that
// user is root, accountFor returns the first available of several common users.
func accountFor(dir string) (account, error) {
	me := account{name: "uid " + strconv.Itoa(os.Geteuid()), uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())} // #nosec G115 -- ids of a Unix
	if dir != "" {
		if owner, ok := ownerOf(filepath.Join(dir, "pgdata")); ok && owner.uid != me.uid {
			if me.uid != 0 {
				return account{}, fmt.Errorf("the data in %s belongs to %s, but this process runs as %s: use another directory, or run as that user or as root",
					dir, owner.name, me.name)
			}
			return owner, nil
		}
	}
	if me.uid != 0 {
		return me, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody", "daemon"} {
		if u, err := user.Lookup(name); err == nil {
			if a, ok := asAccount(u); ok {
				return a, nil
			}
		}
	}
	return firstUser()
}

// firstUser returns the first user in /etc/passwd other than root. initdb requires the user to be listed there.
func firstUser() (account, error) {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return account{}, fmt.Errorf("find an unprivileged user: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Split(lines.Text(), ":")
		if len(field) < 4 {
			continue
		}
		if a, ok := asAccount(&user.User{Username: field[0], Uid: field[2], Gid: field[3]}); ok {
			return a, nil
		}
	}
	return account{}, fmt.Errorf("find an unprivileged user: PostgreSQL does not run as root, and this machine has no other user; add one named postgres")
}

func asAccount(u *user.User) (account, bool) {
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if errUID != nil || errGID != nil || uid == 0 {
		return account{}, false
	}
	return account{name: "user " + u.Username, uid: uint32(uid), gid: uint32(gid), other: true}, true
}

func ownerOf(path string) (account, bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return account{}, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return account{}, false
	}
	a := account{name: "uid " + strconv.Itoa(int(stat.Uid)), uid: stat.Uid, gid: stat.Gid, other: true}
	return a, true
}

// The pause before a new attempt to start a server that has exited. Each pause is twice as long as the previous one.
const (
	minPause = 100 * time.Millisecond
	maxPause = 15 * time.Second
)

// KeepRunning restarts the server after each exit, until ctx is done or Stop is called. It logs each exit with the end of the server's
// log. While the server cannot start, for example because the disk is full, KeepRunning keeps trying, and logs the first failure.
func (s *Server) KeepRunning(ctx context.Context) {
	pause := minPause
	for failures := 0; ; {
		proc := s.process()
		started := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-proc.done:
		}
		if time.Since(started) > maxPause {
			pause = minPause // the server ran for a while
		}
		again, err := s.startAfterExit(ctx, proc, failures == 0)
		switch {
		case !again || ctx.Err() != nil:
			return
		case err != nil:
			if failures++; failures == 1 {
				s.logger.ErrorContext(ctx, "postgres does not start again: trying until it does, free disk space or memory", "err", err)
			}
		default:
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// startAfterExit starts the server if exited is still its last process. It returns false if the server was stopped permanently.
func (s *Server) startAfterExit(ctx context.Context, exited *process, first bool) (again bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.proc != exited {
		return !s.stopped, nil
	}
	if first {
		s.logger.ErrorContext(ctx, "postgres exited: starting it again", "server_pid", exited.pid, "err", orClean(exited.err), "log", s.logTail())
	}
	if err := s.home.takeOver(ctx, s.logger); err != nil {
		return true, err
	}
	if err := s.start(ctx); err != nil {
		return true, err
	}
	s.logger.InfoContext(ctx, "postgres started again", "server_pid", s.proc.pid, "port", s.port)
	return true, nil
}

// logTail returns the end of the server's log.
func (s *Server) logTail() string {
	log, err := s.home.openLog()
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	defer log.Close()
	return tail(log)
}
