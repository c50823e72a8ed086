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

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// restartAfter is how long a place stays empty before its next process, as an orchestrator would have it.
const restartAfter = time.Second

// ErrNoProcess is what a command to a place that has no process returns.
var ErrNoProcess = errors.New("the place has no process")

// place is a place in the fleet, of a pod or of a remote worker. Its processes come and go: one that has ended is followed by
// another after about a second, unless somebody holds the place down. Its methods are safe for concurrent use.
type place struct {
	w       *World
	name    string
	command string          // of the program
	env     func() []string // on top of everybody's
	about   history.Process // what is known of each process beforehand

	mu      sync.Mutex
	now     *life // the present process, nil: none
	lives   int
	boot    string
	emptied time.Time     // when the last process ended
	held    int           // how many hold it down
	changed chan struct{} // closed, and made anew, when any of these has changed
}

// newPlace makes an empty place for processes that a command of the program starts, with env on top of everybody's environment.
func newPlace(w *World, command string, about history.Process, env func() []string) *place {
	return &place{w: w, name: about.Pod, command: command, env: env, about: about, changed: make(chan struct{})}
}

// Name is the place's name, pod1 or worker1 for the first.
func (p *place) Name() string { return p.name }

// Ready reports whether the present process has said that it is ready.
func (p *place) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now != nil && p.now.record.Ready != nil
}

// PID is the present process, 0 when there is none.
func (p *place) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return 0
	}
	return p.now.record.PID
}

// Boot is the latest boot id that is known of the place, "" when none is.
func (p *place) Boot() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boot
}

// Signal sends a signal to the present process; without one it returns ErrNoProcess.
func (p *place) Signal(s syscall.Signal) error {
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
		r.StoppedBy = byASignal
	case syscall.SIGSTOP, syscall.SIGCONT:
	default:
		r.StoppedBy = byASignal
	}
	if err := p.now.cmd.Process.Signal(s); errors.Is(err, os.ErrProcessDone) {
		return ErrNoProcess
	} else if err != nil {
		return fmt.Errorf("signal %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Kill is kill -9; it returns when the process has ended.
func (p *place) Kill() error {
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
func (p *place) WaitExit(ctx context.Context) error {
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
func (p *place) Start(ctx context.Context, env ...string) error {
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
func (p *place) launch(env ...string) (*life, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return p.now, nil
	}
	one, err := begin(p, p.lives+1, slices.Concat(p.w.environment(p.name), p.env(), env))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	p.lives++
	p.now = one
	p.note()
	return one, nil
}

// HoldDown keeps the place empty once its process has ended, until release is called. It does not end the process.
func (p *place) HoldDown() (release func()) {
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
func (p *place) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = 0
	p.note()
}

// note tells the keeper that something has changed. The caller holds p.mu.
func (p *place) note() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// keep starts a process in the place whenever it has been empty for a while, until ctx ends.
func (p *place) keep(ctx context.Context) {
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
