package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/internal/faultnet"
)

// restartAfter is how long a place stays empty before its next process, as an orchestrator would have it.
const restartAfter = time.Second

// ErrNoProcess is what a command to a pod that has no process returns.
var ErrNoProcess = errors.New("the pod has no process")

// Pod is a place in the fleet, behind a proxy of its own. Its processes come and go: one that has ended is followed by
// another after about a second, unless somebody holds the place down. Its methods are safe for concurrent use.
type Pod struct {
	w     *World
	name  string
	proxy *faultnet.Proxy

	mu      sync.Mutex
	now     *life // the present process, nil: none
	lives   int
	boot    string
	emptied time.Time     // when the last process ended
	held    int           // how many hold it down
	changed chan struct{} // closed, and made anew, when any of these has changed
}

func newPod(w *World, name string, proxy *faultnet.Proxy) *Pod {
	return &Pod{w: w, name: name, proxy: proxy, changed: make(chan struct{})}
}

// Name is the pod's name, pod1 for the first.
func (p *Pod) Name() string { return p.name }

// Proxy is the network between the pod and PostgreSQL.
func (p *Pod) Proxy() *faultnet.Proxy { return p.proxy }

// URL is where the present process answers HTTP, "" when there is none that has said so.
func (p *Pod) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return ""
	}
	return p.now.url
}

// PID is the present process, 0 when there is none.
func (p *Pod) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return 0
	}
	return p.now.record.PID
}

// Boot is the latest boot id that is known of the pod, "" when none is.
func (p *Pod) Boot() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boot
}

// Signal sends a signal to the present process; without one it returns ErrNoProcess.
func (p *Pod) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return ErrNoProcess
	}
	// Written down first: what dies of the signal must not look as if it had died of its own.
	r := &p.now.record
	switch s {
	case syscall.SIGTERM:
		if r.TermsGot++; r.TermAt == nil {
			now := time.Now()
			r.TermAt = &now
		}
		r.Told = byASignal
	case syscall.SIGSTOP, syscall.SIGCONT:
	default:
		r.Told = byASignal
	}
	if err := p.now.cmd.Process.Signal(s); errors.Is(err, os.ErrProcessDone) {
		return ErrNoProcess
	} else if err != nil {
		return fmt.Errorf("signal %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Kill is kill -9; it returns when the process has ended.
func (p *Pod) Kill() error {
	p.mu.Lock()
	one := p.now
	p.mu.Unlock()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-one.ended
	return nil
}

// WaitExit waits until the present process has ended.
func (p *Pod) WaitExit(ctx context.Context) error {
	p.mu.Lock()
	one := p.now
	p.mu.Unlock()
	if one == nil {
		return nil
	}
	select {
	case <-one.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has not ended: %w", p.name, context.Cause(ctx))
	}
}

// Start starts a process in the place, with env on top of its environment, and waits until it is ready. Where one lives
// already it waits for that one, and env means nothing.
func (p *Pod) Start(ctx context.Context, env ...string) error {
	one, err := p.launch(env...)
	if err != nil {
		return err
	}
	select {
	case <-one.ready:
		return nil
	case <-one.ended:
		return fmt.Errorf("%s ended before it was ready; see %s", p.name, one.record.Log)
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w", p.name, context.Cause(ctx))
	}
}

// launch starts a process unless there is one.
func (p *Pod) launch(env ...string) (*life, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return p.now, nil
	}
	one, err := begin(p, p.lives+1, slices.Concat(p.environment(), env))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	p.lives++
	p.now = one
	p.note()
	return one, nil
}

// HoldDown keeps the place empty once its process has ended, until release is called. It does not end the process.
func (p *Pod) HoldDown() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held++
	p.note()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = max(p.held-1, 0) // the quiet tail may have taken it back
		p.note()
	})
}

// release takes back every HoldDown.
func (p *Pod) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = 0
	p.note()
}

// note tells the keeper that something has changed. The caller holds p.mu.
func (p *Pod) note() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// keep starts a process in the place whenever it has been empty for a while, until ctx ends.
func (p *Pod) keep(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		left := restartAfter - time.Since(p.emptied)
		wanted, changed := p.now == nil && p.held == 0, p.changed
		p.mu.Unlock()
		if wanted && left <= 0 {
			if _, err := p.launch(); err != nil {
				p.w.fail(err)
				return
			}
			continue
		}
		var due <-chan time.Time
		if wanted {
			due = time.After(left)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-due:
		}
	}
}

// close ends the process, if there is one, and the proxy.
func (p *Pod) close() {
	_ = p.Kill()
	p.proxy.Close()
}
