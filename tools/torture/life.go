package torture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// podLogs is the subfolder of a run's folder for the processes' logs.
const podLogs = "pods"

// The reasons for a process to exit.
const (
	byASignal    = "signal"
	byAFailpoint = "failpoint"
)

// life is one process in a place.
type life struct {
	place  *place
	cmd    *exec.Cmd
	log    *os.File
	record history.Process // guarded by place.mu, like url
	url    string
	ready  chan struct{} // closed when the process has reported that it is ready
	ended  chan struct{} // closed when the process has exited and its record has been written
}

// begin starts the nth process in a place. On Linux, the process dies together with the torture, even if it is frozen.
func begin(p *place, n int, env []string) (*life, error) {
	l := &life{place: p, ready: make(chan struct{}), ended: make(chan struct{})}
	name := filepath.Join(podLogs, fmt.Sprintf("%s-%d.log", p.name, n))
	log, err := os.OpenFile(filepath.Join(p.w.Dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	l.log = log
	l.cmd = exec.Command(p.w.binary, p.command)
	l.cmd.Dir = os.TempDir()
	l.cmd.Env = env
	l.cmd.Stdout, l.cmd.Stderr = &lines{each: l.said}, &lines{each: l.said}
	l.cmd.WaitDelay = 2 * time.Second
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must reach only the torture, not the pods
	dieWithUs(l.cmd.SysProcAttr)
	l.record = p.about
	l.record.Log, l.record.Race, l.record.Started = name, p.w.Settings.Race, time.Now()

	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that started the child ends. This goroutine therefore holds on to its
		// thread until the child has exited.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := l.cmd.Start(); err != nil {
			started <- err
			return
		}
		l.record.PID = l.cmd.Process.Pid
		started <- nil
		_ = l.cmd.Wait() // ProcessState describes how the process ended
		l.end()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%w (log: %v)", err, log.Close())
	}
	return l, nil
}

// end records how the process ended and frees its place.
func (l *life) end() {
	p := l.place
	p.mu.Lock()
	l.record.Ended = time.Now()
	l.record.Exit = l.cmd.ProcessState.ExitCode()
	if status, ok := l.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		l.record.Signal = status.Signal().String()
	}
	p.now, p.emptied = nil, time.Now()
	p.note()
	record := l.record
	p.mu.Unlock()
	if err := l.log.Close(); err != nil {
		p.w.fail(err)
	}
	if err := p.w.processes.Write(record); err != nil {
		p.w.fail(err)
	}
	close(l.ended)
}

// said processes a line of the process's output.
func (l *life) said(line []byte) {
	l.place.mu.Lock()
	defer l.place.mu.Unlock()
	if _, err := l.log.Write(append(line, '\n')); err != nil {
		l.place.w.fail(err)
	}
	switch {
	case bytes.HasPrefix(line, []byte("{")):
		l.saidObject(line)
	case bytes.Contains(line, []byte("WARNING: DATA RACE")):
		l.record.Races++
	case bytes.HasPrefix(line, []byte("failpoint ")):
		fired := strings.TrimPrefix(string(line), "failpoint ")
		l.record.Fired = append(l.record.Fired, fired)
		if _, what, _ := strings.Cut(fired, ": "); what == "kill" || strings.HasPrefix(what, "exit") {
			l.record.StoppedBy = byAFailpoint
		}
	}
}

// introductions lists the log messages that announce a new pod ID.
var introductions = []string{"runner started", "pod registered again", "remote worker started", "lease lost: registering again with a new worker id"}

// saidObject processes a line of JSON output, which is either the readiness message or a log entry.
func (l *life) saidObject(line []byte) {
	var one struct {
		Ready bool   `json:"ready"`
		HTTP  string `json:"http"`
		PodID string `json:"pod_id"`
		Pod   string `json:"pod"`
		Msg   string `json:"msg"`
	}
	if json.Unmarshal(line, &one) != nil {
		return
	}
	if (one.Ready || one.Msg == "accepted by a pod") && l.record.Ready == nil {
		now := time.Now()
		l.record.Ready, l.url = &now, one.HTTP
		close(l.ready)
	}
	if one.Msg == "remote worker accepted" { // logged by a pod, so the place is the pod's
		l.place.w.serves(one.Pod, l.place.name)
	}
	if (one.Ready || slices.Contains(introductions, one.Msg)) && one.PodID != "" && !slices.Contains(l.record.PodIDs, one.PodID) {
		l.record.PodIDs = append(l.record.PodIDs, one.PodID)
		l.place.podID = one.PodID
	}
}

// cleanEnvironment returns the current environment without variables that would affect the program under test.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "TRAPEZE_") || strings.HasPrefix(e, "PG") || strings.HasPrefix(e, "DATABASE_URL=") ||
			strings.HasPrefix(e, "GORACE=") || strings.HasPrefix(e, "GOMAXPROCS=")
	})
}

// environment returns the environment variables that all processes of the fleet need.
func (w *World) environment(name string) []string {
	s := w.Settings
	return append(cleanEnvironment(),
		"TRAPEZE_POD_NAME="+name, "TRAPEZE_SHUTDOWN_GRACE="+s.Grace.String(), "TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_LEDGER_URL="+w.ledger.url(),
		"TRAPEZE_LOG_FORMAT=json",
		"GORACE=atexit_sleep_ms=10", // the default of one second would distort the shutdown time
	)
}

// lines is a writer that passes complete lines, without their line endings, to each. The function may append to the slice.
type lines struct {
	mu   sync.Mutex
	part []byte
	each func([]byte)
}

// mostLine is the maximum number of bytes that are kept of an incomplete line.
const mostLine = 1 << 20

func (w *lines) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, b...)
	for {
		line, rest, found := bytes.Cut(w.part, []byte("\n"))
		if !found {
			if len(w.part) > mostLine {
				w.each(bytes.Clone(w.part))
				w.part = nil
			}
			return len(b), nil
		}
		w.each(bytes.Clone(line))
		w.part = rest
	}
}
