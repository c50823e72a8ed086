package runnertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/runner"
)

// pod is a runner with its own pool. A test can make it die.
type pod struct {
	harness *Harness
	name    string
	pool    *pgxpool.Pool
	runner  *runner.Runner
	wire    *wire
	watch   *watch

	quit  context.CancelFunc
	ended chan struct{} // closed when Run has returned
	err   error         // the error of Run; valid once ended is closed
	dead  chan struct{}
	dying sync.Once

	calls    sync.WaitGroup // running handler calls
	mu       sync.Mutex
	handlers map[*context.CancelCauseFunc]bool // cancel functions for the contexts of running handlers
}

// startPod starts a pod that runs jobs until it is stopped or dies.
func (h *Harness) startPod() (*pod, error) {
	p := &pod{harness: h, name: fmt.Sprintf("pod-%d", len(h.pods)+1),
		ended: make(chan struct{}), dead: make(chan struct{}), handlers: map[*context.CancelCauseFunc]bool{}}
	config := h.host.Config()
	config.MinConns, config.MinIdleConns = 0, 0
	p.wire = &wire{dial: config.ConnConfig.DialFunc}
	p.watch = newWatch(p, h.opts.Schema)
	config.ConnConfig.DialFunc = p.wire.open
	if config.ConnConfig.Tracer == nil {
		config.ConnConfig.Tracer = p.watch
	} else {
		config.ConnConfig.Tracer = multitracer.New(config.ConnConfig.Tracer, p.watch)
	}
	var err error
	if p.pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		return nil, err
	}
	o := h.opts
	o.TraceQueries = true // the tracer must see the statements at which the pod dies
	o.Name, o.Middleware = p.name, append([]runner.Middleware{p.perform}, o.Middleware...)
	if p.runner, err = runner.New(p.pool, o); err != nil {
		p.pool.Close()
		return nil, err
	}
	h.register(p.runner)
	inside.Of(p.runner).Pod.Submitter.ByHand()
	ctx, quit := context.WithCancel(context.Background())
	p.quit = quit
	h.pods = append(h.pods, p)
	h.mu.Lock()
	h.pod = p
	h.mu.Unlock()
	go func() {
		defer close(p.ended)
		p.err = p.runner.Run(ctx)
	}()
	return p, nil
}

// perform is the middleware around each handler of this pod.
func (p *pod) perform(ctx context.Context, j *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (outcome *runner.Outcome, err error) {
	p.pass(AfterClaim, j.Kind())
	ctx, over, lives := p.handlerContext(ctx)
	if !lives {
		return nil, ErrDead
	}
	defer over()
	p.watch.called(j.ID(), j.Kind())
	defer func() { // deferred, so that it runs after a panic too
		p.pass(MidStep, j.Kind())
		p.pass(BeforeFinish, j.Kind())
		p.watch.returned(j.ID())
		if p.isDead() {
			outcome, err = nil, ErrDead
		}
	}()
	return next(ctx)
}

// pass is called when a job of the given kind reaches a point. It makes the pod die if a death is due there.
func (p *pod) pass(at Point, kind string) {
	if !p.isDead() && p.harness.takeDeath(at, kind) {
		p.die()
	}
}

// handlerContext returns a handler's context, which is cancelled when the pod dies. lives is false if the pod is already dead. The caller
// must call over when the handler has returned.
func (p *pod) handlerContext(ctx context.Context) (_ context.Context, over func(), lives bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDead() {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	key := &cancel
	p.handlers[key] = true
	p.calls.Add(1)
	return ctx, func() {
		p.mu.Lock()
		delete(p.handlers, key)
		p.mu.Unlock()
		cancel(nil)
		p.calls.Done()
	}, true
}

// die disconnects the pod: it can no longer reach the database or call a handler.
func (p *pod) die() {
	p.dying.Do(func() {
		p.wire.sever()
		p.mu.Lock()
		close(p.dead)
		for cancel := range p.handlers {
			(*cancel)(ErrDead)
		}
		p.mu.Unlock()
		p.harness.mu.Lock()
		p.harness.died++
		p.harness.mu.Unlock()
	})
}

func (p *pod) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// stop stops the pod without a grace period. close waits until it has stopped.
func (p *pod) stop() {
	p.runner.HandBackNow()
	p.quit()
}

// closeWithin is the maximum time that a pod may take to stop.
const closeWithin = 15 * time.Second

// close waits until the pod has stopped, and closes its connections. For a dead pod, it waits only for the handlers: the other goroutines
// keep trying to reach the database for a few seconds, and then end.
func (p *pod) close() error {
	closed, handled := make(chan struct{}), make(chan struct{})
	go func() {
		<-p.ended
		p.runner.Close()
		p.pool.Close()
		close(closed)
	}()
	go func() {
		select {
		case <-p.dead:
			p.calls.Wait()
			close(handled)
		case <-closed:
		}
	}()
	select {
	case <-closed:
	case <-handled:
	case <-time.After(closeWithin):
		return fmt.Errorf("%s did not stop: one of its handlers has not returned", p.name)
	}
	// A pod that is stopped before it has started returns context.Canceled.
	if !p.isDead() && p.err != nil && !errors.Is(p.err, context.Canceled) {
		return fmt.Errorf("%s: %w", p.name, p.err)
	}
	return nil
}
