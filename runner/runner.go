package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner/admin"
)

// Runner submits and runs jobs in this process. Create one with [New], register handlers with [Handle], then call [Runner.Run]. Its methods
// are safe for concurrent use.
type Runner struct {
	pod  *pod.Pod
	opts Options

	mu       sync.Mutex
	started  bool
	declared []declaration // the declared schedules
	mistakes []error       // those found when handlers and schedules were declared
	remote   *pgxpool.Pool // a pool that refuses to connect, see NewRemote; nil if the runner has a database

	registered map[string]*registered // by kind
}

// PodConnections is the maximum number of connections that a busy pod opens in addition to the host's pool. An idle pod keeps three open.
// Each running export, of which there are at most two, uses one more.
const PodConnections = pod.Connections

// New returns a runner that uses the host's pool. It copies the pool's configuration to open a few additional connections later, but does
// not connect. It reports all mistakes in the options as one error.
func New(pool *pgxpool.Pool, o Options) (*Runner, error) {
	if pool == nil {
		return nil, errors.New("runner: the pool is nil")
	}
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("runner options: %w", err)
	}
	p, err := pod.New(pool, o.pod())
	if err != nil {
		return nil, err
	}
	return &Runner{pod: p, opts: o, registered: map[string]*registered{}}, nil
}

// Run runs jobs until ctx is done, then drains: it stops claiming, gives handlers Options.ShutdownGrace to finish, then cancels their
// contexts and hands the remaining jobs back so that other pods can run them. It returns nil after a drain, once every goroutine it started
// has ended, except those of handlers that ignore the cancellation of their context. It also returns nil if ctx is done before the runner
// has started, for example while it is waiting for the database; the log states the reason. If handlers or schedules are declared wrongly, Run
// returns all mistakes as one error. Call Run only once.
func (r *Runner) Run(ctx context.Context) error {
	kinds, schedules, err := r.begin()
	if err != nil {
		return err
	}
	return r.pod.Run(ctx, kinds, schedules)
}

// RunUntilSignal is like [Runner.Run], but also begins to drain at SIGTERM or an interrupt, and calls [Runner.StopNow] at the second such
// signal. It returns after the drain. Stop accepting HTTP requests afterwards, so that the pod can be asked for its state until then.
func (r *Runner) RunUntilSignal(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for _, react := range []func(){stop, r.StopNow} {
			select {
			case <-signals:
				react()
			case <-ended:
				return
			}
		}
	}()
	return r.Run(ctx)
}

// begin validates the configuration and returns the kinds and schedules to run. After begin, nothing more can be registered or declared.
func (r *Runner) begin() (kinds []string, schedules []pod.Schedule, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return nil, nil, errors.New("run: this runner was already run")
	}
	if r.remote != nil {
		return nil, nil, fmt.Errorf("run: %w: use package remote/worker", ErrNoDatabase)
	}
	schedules, err = r.checkDeclared()
	kinds, unregistered := r.kindsToRun()
	if err := errors.Join(err, unregistered); err != nil {
		return nil, nil, err
	}
	r.started = true
	return kinds, schedules, nil
}

// LaneEngine describes an engine other than PostgreSQL, such as Temporal, to the API, the dashboard and the doctor command.
type LaneEngine = job.LaneEngine

// UseEngine registers an engine for the lanes that name it; see trapeze lane set --engine. The engine's package calls it before Run. It
// returns an error if the engine's name is invalid or already registered, or if Run has already been called.
func (r *Runner) UseEngine(e LaneEngine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return errors.New("use an engine: call UseEngine before Run")
	}
	return r.pod.UseEngine(e)
}

// Close sends any merged wake-ups that are still pending, and closes the connections that the runner opened. Call it after Run, or instead
// of Run in a program that only submits. If such a program ends without Close, its latest jobs may wait for the next poll.
func (r *Runner) Close() {
	r.pod.Close()
	if r.remote != nil {
		r.remote.Close()
	}
}

// Admin returns the commands of an operator, whose name the audit log records. An empty name is recorded as operator.
func (r *Runner) Admin(actor string) admin.Admin { return admin.Of(r, actor) }

// PodID returns the id that identifies this process as a pod. It is chosen at random at startup, and changes when the pod loses its lease.
func (r *Runner) PodID() string { return r.pod.PodID() }

// PodName returns the display name of this pod.
func (r *Runner) PodName() string { return r.opts.PodName }

// Running returns the number of jobs currently running in this process.
func (r *Runner) Running() int { return r.pod.Runs.Len() }

// ReasonDrained is the reason that [Runner.Ready] returns for a pod that an operator has drained. The pod starts no jobs until it is
// resumed.
const ReasonDrained = "drained by an operator"

// ReasonCutOff is the reason that [Runner.Ready] returns for a pod that no longer trusts its lease because its heartbeats have failed for
// too long. Its reads may be outdated, because a connection may lead to a standby or to a former primary.
const ReasonCutOff = "heartbeats fail: the database does not respond"

// Ready reports whether this pod can accept work, and if not, why.
func (r *Runner) Ready() (ready bool, reasons []string) {
	switch {
	case r.pod.Closing.Load():
		reasons = append(reasons, "draining")
	case !r.pod.Lease.Registered():
		reasons = append(reasons, "not started")
	case !r.pod.Lease.Trusted():
		reasons = append(reasons, ReasonCutOff)
	case r.pod.Lanes.Drained():
		reasons = append(reasons, ReasonDrained)
	}
	return len(reasons) == 0, reasons
}

// Maintain runs every maintenance task once. Running pods perform each task at an interval between a minute and an hour; Maintain is for
// tools and tests that cannot wait that long. It continues after an error and returns all tasks' errors. It is safe for concurrent use.
func (r *Runner) Maintain(ctx context.Context) error { return r.pod.Maintain(ctx) }

// StopNow cuts short the grace period of a shutdown in progress. It cancels the handlers' contexts; jobs whose handlers do not return
// within a second are handed back. Call it on a second signal, for example.
func (r *Runner) StopNow() { r.pod.HurryDrain() }

// This hook gives other packages of the module access to a Runner's pod; see package inside.
func init() {
	inside.Of = func(it inside.Runner) inside.Parts {
		r := it.(*Runner)
		return inside.Parts{Pod: r.pod, Store: r.pod.Commands, Slow: r.pod.Slow, Feed: r.pod.Feed, Handles: r.handles, Secrets: r.secrets, Declare: r.declareNow, Check: r.check}
	}
}
