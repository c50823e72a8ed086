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

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// restartAfter is the pause before the next process starts in an empty place, as under an orchestrator.
const restartAfter = time.Second

// ErrNoProcess is returned by commands to a place that has no process.
var ErrNoProcess = errors.New("the place has no process")

// place is a slot in the fleet for a pod or a remote worker. About a second after one of its processes ends, the next process starts,
// unless the place is held down. Its methods are safe for concurrent use.
type place struct {
	w       *World
	name    string
	command string          // subcommand of the program
	env     func() []string // extra environment variables
	about   history.Process // fields that are the same in all records of its processes

	mu      sync.Mutex
	now     *life // the current process, or nil
	lives   int
	podID   string
	emptied time.Time     // when the latest process ended
	held    int           // number of HoldDown calls that have not been released
	changed chan struct{} // closed and replaced when any of these fields changes
}

// newPlace creates an empty place for processes that run one of the program's subcommands, with env added to the common environment.
func newPlace(w *World, command string, about history.Process, env func() []string) *place {
	return &place{w: w, name: about.Pod, command: command, env: env, about: about, changed: make(chan struct{})}
}

// Name returns the place's name, such as pod1 or worker1.
func (p *place) Name() string { return p.name }

// Ready reports whether the current process is ready.
func (p *place) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now != nil && p.now.record.Ready != nil
}

// PID returns the current process's PID, or 0 if there is none.
func (p *place) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return 0
	}
	return p.now.record.PID
}

// PodID returns the place's latest known pod ID, or an empty string if none is known.
func (p *place) PodID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.podID
}

// Signal sends a signal to the current process, or returns ErrNoProcess if there is none.
func (p *place) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return ErrNoProcess
	}
	// Record the signal before sending it, so that a process that it kills does not appear to have exited on its own.
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

// Kill sends SIGKILL to the process and returns once the process has exited.
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

// WaitExit waits until the current process has exited.
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

// Start starts a process in the place, with env added to its environment, and waits until the process is ready. If a process is already
// running, Start waits for that process and ignores env.
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

// launch starts a process unless one is already running.
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

// HoldDown prevents new processes from starting in the place until release is called. It does not stop the current process.
func (p *place) HoldDown() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held++
	p.note()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = max(p.held-1, 0) // the quiet tail may already have reset the count
		p.note()
	})
}

// release undoes all HoldDown calls.
func (p *place) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = 0
	p.note()
}

// note wakes the keeper after a change. The caller must hold p.mu.
func (p *place) note() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// keep starts a process whenever the place has been empty for a while, until ctx is cancelled.
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
