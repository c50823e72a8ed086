package runnertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
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
	o.PodName, o.Middleware = p.name, append([]runner.Middleware{p.perform}, o.Middleware...)
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
		p.pass(AfterFirstCommit, j.Kind())
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
	p.runner.StopNow()
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

// Point is a point in a job's execution at which its pod can die.
type Point int

// The points, in the order in which a job reaches them.
const (
	// AfterClaim is the point at which the pod holds the job but has not called its handler. The pod acquired the job through a claim, or
	// through the commit that ended the previous step.
	AfterClaim Point = iota + 1
	// AfterFirstCommit is the point after the handler has committed data with Job.Tx or Job.Checkpoint, and before it returns. If a handler commits
	// nothing, the database cannot distinguish the stages of the run, so the pod dies when the handler returns. See also [Harness.Die].
	AfterFirstCommit
	// BeforeFinish is the point after the handler has returned and before its outcome is sent.
	BeforeFinish
	// DuringCommit is the point at which the statement or commit that ends the run has been sent but has not arrived. Several jobs may share it.
	DuringCommit
	// AfterFinish is the point at which the job has finished or is waiting, and the pod no longer holds it. The pod may hold a next step
	// that has not started.
	AfterFinish
)

// String returns the point in words.
func (p Point) String() string {
	switch p {
	case AfterClaim:
		return "after a claim"
	case AfterFirstCommit:
		return "mid-step"
	case BeforeFinish:
		return "before a finish"
	case DuringCommit:
		return "in a flush"
	case AfterFinish:
		return "after a finish"
	}
	return fmt.Sprintf("at the point %d", int(p))
}

// ErrDead is the cancellation cause of the handlers' contexts when their pod dies.
var ErrDead = errors.New("runnertest: the pod has died")

// death is a requested death that has not happened yet.
type death struct {
	at    Point
	kinds []string
}

func (d death) String() string {
	if len(d.kinds) == 0 {
		return d.at.String()
	}
	return fmt.Sprintf("%s of %s", d.at, strings.Join(d.kinds, " or "))
}

// DieAt makes the pod die the next time a job of one of the kinds reaches a point. Without kinds, a job of any kind triggers the death. The
// package documentation explains what happens when a pod dies. If several deaths are requested, they happen in order. The test fails if it
// ends before all of them have happened.
//
// A job survives at most Options.MaxCrashes − 1 deaths: by default, the third death of its pod fails it.
func (h *Harness) DieAt(at Point, kinds ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaths = append(h.deaths, death{at, kinds})
}

// Die makes the current pod die now. A handler can call it to make its pod die at a place that no [Point] describes. When Die returns, the
// handler's context has been cancelled, and the handler should return.
func (h *Harness) Die() {
	h.mu.Lock()
	p := h.pod
	h.mu.Unlock()
	if p != nil {
		p.die()
	}
}

// Crashes returns the number of pods that have died.
func (h *Harness) Crashes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.died
}

// takeDeath reports whether the next death is due when a job of the given kind reaches a point. If so, it removes the death from the list.
func (h *Harness) takeDeath(at Point, kind string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.deaths) == 0 || h.deaths[0].at != at {
		return false
	}
	if kinds := h.deaths[0].kinds; len(kinds) > 0 && !slices.Contains(kinds, kind) {
		return false
	}
	h.deaths = h.deaths[1:]
	return true
}

// wire manages one pod's network connections and can cut them.
type wire struct {
	dial pgconn.DialFunc

	mu    sync.Mutex
	conns []net.Conn
	cut   bool
	pids  []uint32 // process ids of the server sessions
}

var errCut = errors.New("runnertest: the connections of a dead pod are cut")

// open implements [pgconn.DialFunc].
func (w *wire) open(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: errCut}
	}
	w.conns = append(w.conns, conn)
	return conn, nil
}

// opened records a connection's server process.
func (w *wire) opened(pid uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids = append(w.pids, pid)
}

// sever closes all connections and rejects new ones.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, c := range w.conns {
		_ = c.Close() // an error means that it is already closed
	}
	w.conns = nil
}

func (w *wire) processes() []uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.pids)
}

// watch is a pgx tracer that observes the statements on a pod's connections, to detect when the pod's jobs reach a given point. It is called
// before a statement is sent and after its reply has arrived.
type watch struct {
	pod     *pod
	effects map[string]store.Effect

	mu      sync.Mutex
	jobs    map[int64]*watched
	holding map[*pgx.Conn][]int64 // ids of the jobs whose claims the connection's transaction has locked
}

// watched is a job whose handler has been called.
type watched struct {
	kind     string
	returned bool
}

func newWatch(p *pod, schema string) *watch {
	return &watch{pod: p, effects: store.Effects(schema), jobs: map[int64]*watched{}, holding: map[*pgx.Conn][]int64{}}
}

// called and returned record that a job's handler has been called, or has returned.
func (w *watch) called(id int64, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs[id] = &watched{kind: kind}
}

func (w *watch) returned(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs[id].returned = true
}

// sent describes the effects of an in-flight statement. ends lists the kinds of the jobs whose claims the statement ends. keeps lists the
// kinds of the jobs for which it commits data written by the handler.
type sent struct {
	ends, keeps []string
}

type sentKey struct{}

// TraceQueryStart implements [pgx.QueryTracer].
func (w *watch) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return w.start(ctx, w.read(conn, data.SQL, data.Args))
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (w *watch) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.CommandTag.String() != "ROLLBACK" {
		w.end(ctx, data.Err)
	}
}

// TraceBatchStart implements [pgx.BatchTracer].
func (w *watch) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	var all sent
	for _, q := range data.Batch.QueuedQueries {
		s := w.read(conn, q.SQL, q.Arguments)
		all.ends, all.keeps = append(all.ends, s.ends...), append(all.keeps, s.keeps...)
	}
	return w.start(ctx, all)
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (w *watch) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (w *watch) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	w.end(ctx, data.Err)
}

// start reports the points that jobs reach before statements are sent.
func (w *watch) start(ctx context.Context, s sent) context.Context {
	for _, kind := range s.ends {
		w.pod.pass(DuringCommit, kind)
	}
	return context.WithValue(ctx, sentKey{}, s)
}

// end reports the points that jobs reach when the replies to statements have arrived.
func (w *watch) end(ctx context.Context, err error) {
	s, _ := ctx.Value(sentKey{}).(sent)
	if err != nil || w.pod.isDead() {
		return
	}
	for _, kind := range s.keeps {
		w.pod.pass(AfterFirstCommit, kind)
	}
	for _, kind := range s.ends {
		w.pod.pass(AfterFinish, kind)
	}
}

// read returns a statement's effects.
func (w *watch) read(conn *pgx.Conn, sql string, args []any) (s sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.effects[sql] {
	case store.Holds:
		w.holding[conn] = store.JobsOf(args)
	case store.Keeps:
		s.keeps = w.kinds(store.JobsOf(args))
	case store.Ends:
		s.ends = w.kinds(store.JobsOf(args))
		delete(w.holding, conn) // the commit is in the same batch
	}
	switch sql {
	case "rollback":
		delete(w.holding, conn)
	case "commit":
		for _, id := range w.holding[conn] {
			// Once the handler has returned, the commit ends the job.
			if watched := w.jobs[id]; watched != nil && watched.returned {
				s.ends = append(s.ends, watched.kind)
			} else if watched != nil {
				s.keeps = append(s.keeps, watched.kind)
			}
		}
		delete(w.holding, conn)
	}
	return s
}

func (w *watch) kinds(ids []int64) (kinds []string) {
	for _, id := range ids {
		if watched := w.jobs[id]; watched != nil {
			kinds = append(kinds, watched.kind)
		}
	}
	return kinds
}

// TraceConnectStart implements [pgx.ConnectTracer].
func (w *watch) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

// TraceConnectEnd implements [pgx.ConnectTracer].
func (w *watch) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if data.Err == nil {
		w.pod.wire.opened(data.Conn.PgConn().PID())
	}
}
