package pgembed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
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
	steps := []struct {
		sig    syscall.Signal
		within time.Duration
	}{{fastSignal, fastWithin}, {quitSignal, quitWithin}, {syscall.SIGKILL, quitWithin}}
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
