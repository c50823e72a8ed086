//go:build ha && linux

package ha

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program started by a test. It is stopped when the test or the test process ends.
type process struct {
	cmd   *exec.Cmd
	name  string
	log   string // path of its output file
	ended chan struct{}
}

// start starts a program, as the unprivileged user if requested. The program's output goes to a file, which is shown if the test fails.
func start(t *testing.T, name string, unprivileged bool, env []string, argv ...string) *process {
	t.Helper()
	path, err := find(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	p := &process{name: name, log: filepath.Join(folder(t), name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(path, argv[1:]...)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = folder(t), append(environment(), env...), log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if unprivileged {
		p.cmd.SysProcAttr.Credential = credential(t)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig fires when the thread that started the process exits
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() { p.stop(syscall.SIGTERM) })
	return p
}

// stop sends a signal and waits until the process has exited. If the process takes longer than 20 s to exit, stop kills it.
func (p *process) stop(s syscall.Signal) {
	p.signal(s)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Signal(s) // fails if the process has already exited
	}
}

// alive reports whether the process is still running.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// environment returns the test's environment without variables that affect the programs that it starts.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "TRAPEZE_") || strings.HasPrefix(e, "PG") || strings.HasPrefix(e, "DATABASE_URL=") ||
			strings.HasPrefix(e, "PATRONI_") || strings.HasPrefix(e, "ETCD_") || strings.HasPrefix(e, "LC_") || strings.HasPrefix(e, "LANG")
	})
}

// credential returns the user for running PostgreSQL and Patroni if this process runs as root, and nil otherwise.
func credential(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.Atoi(u.Uid)
			gid, _ := strconv.Atoi(u.Gid)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Fatal("no unprivileged user on this machine: add one named postgres")
	return nil
}

var folders sync.Map // the tests' folders that have been created

// folder returns a test's folder, which is owned by the unprivileged user.
func folder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(scratch, t.Name())
	if _, made := folders.LoadOrStore(dir, true); made {
		return dir
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	owned(t, dir)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, log := range logs {
			text, _ := os.ReadFile(log)
			t.Logf("%s, the last lines:\n%s", filepath.Base(log), tail(string(text), 12))
		}
	})
	return dir
}

func owned(t *testing.T, path string) {
	t.Helper()
	if c := credential(t); c != nil {
		if err := os.Chown(path, int(c.Uid), int(c.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// freePort returns a TCP port on 127.0.0.1 that is currently free.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// listens reports whether anything accepts connections on a port.
func listens(port int) bool {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// watch starts a shell that stops the servers below dir when this process dies. Without this shell, servers started by Patroni would keep
// running.
func watch(dir string) (stop func(), err error) {
	const script = `cat >/dev/null
for f in "$0"/*/*/postmaster.pid; do [ -f "$f" ] && kill -QUIT "$(head -n 1 "$f")"; done`
	cmd := exec.Command("/bin/sh", "-c", script, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = pipe.Close(); _ = cmd.Wait() }, nil
}
