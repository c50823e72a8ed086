package faults

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
)

// pod is a process that runs jobs.
type pod struct {
	w     *world
	name  string
	busy  bool // the pod submits jobs itself
	cmd   *exec.Cmd
	stdin io.Closer // closing it ends the pod
	log   log
	ended chan struct{}
}

// log captures the output of a pod.
type log struct{ podtest.Log }

func (l *log) says(what string) bool { return strings.Contains(l.String(), what) }

// launch starts a pod without waiting until it has registered. failpoints lists the failpoints to enable.
func (w *world) launch(c podConfig, failpoints string) *pod {
	w.t.Helper()
	c.URL = w.podURL
	if c.Slots == 0 {
		c.Slots = 8
	}
	if c.Grace == 0 {
		c.Grace = shutdownGrace
	}
	config, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	p := &pod{w: w, name: c.Name, busy: c.SubmitFor > 0, cmd: exec.Command(self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), podEnv+"="+string(config), "TRAPEZE_FAILPOINTS="+failpoints)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// Each pod runs in a separate process group, so that the kernel wakes a frozen pod if the test process dies. The pod can then exit.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	w.pods = append(w.pods, p)
	w.t.Cleanup(func() {
		if p.alive() {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		if w.t.Failed() {
			w.t.Logf("pod %s (%s):\n%s", p.name, p.cmd.ProcessState, p.log.String())
		}
	})
	return p
}

// start starts a pod and waits until the pod has registered in the database.
func (w *world) start(c podConfig, failpoints string) *pod {
	w.t.Helper()
	p := w.launch(c, failpoints)
	p.waitOpen()
	return p
}

func (p *pod) waitOpen() {
	p.w.t.Helper()
	pgtest.Wait(p.w.t, p.name+" has registered", func() bool {
		return p.w.yes("select exists (select from trapeze.pods where name = $1 and closed_at is null)", p.name)
	})
}

// waitLapsed waits until another pod has declared this one dead.
func (p *pod) waitLapsed() {
	p.w.t.Helper()
	pgtest.Wait(p.w.t, p.name+" has lapsed", func() bool {
		return p.w.yes("select exists (select from trapeze.pods where name = $1 and closed = 'lapsed')", p.name)
	})
}

// waitRunning waits until this pod is running at least n jobs.
func (p *pod) waitRunning(n int) {
	p.w.t.Helper()
	pgtest.Wait(p.w.t, p.name+" runs jobs", func() bool {
		return p.w.yes(`select count(*) >= $2 from trapeze.live l join trapeze.pods p on p.id = l.pod
			join starts s on s.job = l.id and s.fence = l.fence where p.name = $1`, p.name, n)
	})
}

func (p *pod) signal(s syscall.Signal) {
	p.w.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.w.t.Fatalf("signal %s to %s: %v", s, p.name, err)
	}
}

// kill sends SIGKILL to the process and returns once the process is gone.
func (p *pod) kill() {
	p.w.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.ended
}

func (p *pod) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// waitExit waits until the process exits on its own.
func (p *pod) waitExit(t *testing.T, atMost time.Duration) *os.ProcessState {
	t.Helper()
	pgtest.WaitFor(t, atMost, p.name+" has exited", func() bool { return !p.alive() })
	return p.cmd.ProcessState
}

// submissions reads from the pod's log which jobs the pod submitted, and for how many submissions the outcome is unknown. If the pod was
// killed, there may be one more of these than the log shows.
func (p *pod) submissions(t *testing.T) (ids []int64, doubts int) {
	t.Helper()
	if !p.busy {
		return nil, 0
	}
	for line := range strings.Lines(p.log.String()) {
		if text, ok := strings.CutPrefix(line, saysSubmitted); ok {
			id, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				t.Fatalf("log of %s: %v", p.name, err)
			}
			ids = append(ids, id)
		} else if strings.HasPrefix(line, saysUnknown) {
			doubts++
		}
	}
	if !p.log.says(saysDone) {
		doubts++
	}
	return ids, doubts
}
