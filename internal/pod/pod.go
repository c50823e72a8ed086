// Package pod makes a process a member of the fleet. A pod has an engine, and goroutines that listen for notifications, fire schedules,
// maintain the tables and feed clients. Package runner is the public API of a pod. Package remote/internal/host serves remote workers on a
// pod.
package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// Pod is a process in the fleet. It has an engine, and goroutines that listen for notifications, fire schedules, maintain the tables, feed
// clients and serve remote workers.
type Pod struct {
	*engine.Engine
	opts Options

	RemoteStore *store.Store // for heartbeats and messages of remote workers, which must not hold up the pod's
	Slow        *store.Store // for slow reads and maintenance, which must not hold up commands
	Feed        *feed.Feed   // reads only while clients are streaming

	Submitter   *scheduler.Submitter
	listener    listener
	maintenance *maintenance.Maintenance
	backlogs    backlogs
	collecting  sync.Mutex
	front, all  *fleet.Sender // notify the front of the fleet of new jobs, and all pods of jobs left behind (see package fleet)
	runs        atomic.Bool   // whether Run is running, and heartbeats are being sent

	pass  slowPass    // searches for orphaned claims
	known knownClaims // counted for doctor

	laneEngines laneEngines

	hosting sync.Mutex
	workers WorkerSessions
}

// WorkerSessions manages the sessions of the remote workers that a pod serves. Each session has an engine.
type WorkerSessions interface {
	// Each calls do for each session's engine.
	Each(do func(*engine.Engine))
	// Engine returns the engine with the given pod ID, or nil if no session has it.
	Engine(podID string) *engine.Engine
	// Connected returns the number of sessions that have a stream.
	Connected() int
	// Leave ends all sessions when the pod shuts down, and blocks until they have ended.
	Leave()
}

// noSessions is used by a pod that does not serve remote workers.
type noSessions struct{}

func (noSessions) Each(func(*engine.Engine))    {}
func (noSessions) Engine(string) *engine.Engine { return nil }
func (noSessions) Connected() int               { return 0 }
func (noSessions) Leave()                       {}

// sessions returns the sessions of the pod's remote workers.
func (p *Pod) sessions() WorkerSessions {
	p.hosting.Lock()
	defer p.hosting.Unlock()
	return p.workers
}

// ServeWorkers registers the sessions that open returns, unless sessions are already registered. It returns the registered sessions.
func (p *Pod) ServeWorkers(open func() WorkerSessions) WorkerSessions {
	p.hosting.Lock()
	defer p.hosting.Unlock()
	if p.workers == (noSessions{}) {
		p.workers = open()
	}
	return p.workers
}

// New returns a pod that uses the host's pool, and copies that pool's configuration for the pod's own connections. It does not connect.
func New(pool *pgxpool.Pool, o Options) (*Pod, error) {
	s, err := newStores(context.Background(), pool, o)
	if err != nil {
		return nil, err
	}
	log, metrics := slog.New(contextHandler{o.Logger.Handler()}), telemetry.New()
	shared := identity.NewServices(pool, s.hot, s.commands, s.heartbeat, o.LeaseDuration/4, log, metrics, o.TracerProvider, telemetry.Hooks{End: o.OnEnd, Retry: o.OnRetry})
	p := &Pod{
		opts:        o,
		RemoteStore: s.feed, Slow: s.slow, Feed: feed.New(s.feed, feed.Options{Logger: o.Logger, Metrics: metrics}),
		listener: listener{gone: errors.New("not open yet")}, pass: slowPass{every: o.PassEvery}, known: knownClaims{reported: -1}, workers: noSessions{},
	}
	p.front = fleet.NewSender(fleet.Interval, func() { p.sendWakeUp(p.Commands.Channel()) })
	p.all = fleet.NewSender(fleet.Interval, func() { p.sendWakeUp(p.Commands.AllChannel()) })
	p.Engine = engine.New(shared, o.Options, podMember{p})
	p.Ends.CountedAs = p.Lanes.CountedAs
	p.Submitter = newSubmitter(p)
	p.maintenance = newMaintenance(p)
	return p, nil
}

// Options returns the pod's options.
func (p *Pod) Options() Options { return p.opts }

// Run runs jobs of the given kinds and fires schedules until ctx is cancelled, and then drains the pod.
func (p *Pod) Run(ctx context.Context, kinds []string, schedules []Schedule) error {
	p.runs.Store(true)
	defer p.runs.Store(false)
	if err := p.start(ctx, kinds, schedules); err != nil {
		if ctx.Err() == nil {
			return err
		}
		p.leave(ctx) // the pod may have registered even if the reply was lost
		p.Log.WarnContext(ctx, "runner stopped before it had started", telemetry.Pod, p.opts.Name, telemetry.Err, err)
		return nil
	}
	// Even after ctx is cancelled, the goroutines that keep the pod alive continue until the last handler has returned.
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var claimers, engines, life sync.WaitGroup
	life.Go(func() { p.WatchTrust(alive, p.Feed.Interrupt) })
	life.Go(func() { p.beatAfterReset(alive) })
	life.Go(func() { p.keepStats(alive) })
	p.pass.rest()
	claimers.Go(func() { p.listen(ctx) })
	claimers.Go(func() { p.maintenance.Run(ctx) })
	claimers.Go(func() { p.Submitter.Run(ctx) })
	claimers.Go(func() { p.warm(ctx) })
	engines.Go(func() { p.laneEngines.run(ctx) })
	claimers.Go(func() {
		<-ctx.Done()
		p.StopClaims()
		p.Feed.Close() // clients reconnect to other pods, and must not delay a server's shutdown
		p.Log.InfoContext(ctx, "runner draining", telemetry.Pod, p.opts.Name, telemetry.Running, p.Runs.Len())
	})
	p.Log.InfoContext(ctx, "runner started", telemetry.Pod, p.opts.Name, telemetry.PodID, p.PodID(), telemetry.Slots, p.Slots(), telemetry.Kinds, p.HandledKinds)
	// The order of the shutdown: first everything that starts handlers, then the handlers, then the heartbeat that keeps their lease alive,
	// and finally the pod's row.
	p.Live(ctx, func(alive context.Context) {
		claimers.Wait()
		p.sessions().Leave() // the workers continue and reconnect to other pods
		p.Drain(alive)
		engines.Wait()
	})
	die()
	life.Wait()
	p.all.Flush()
	p.front.Flush() // for example for jobs that were handed back
	p.writeLastStats(ctx)
	p.leave(ctx)
	p.Ends.Drain()
	p.Log.InfoContext(ctx, "runner stopped", telemetry.Pod, p.opts.Name)
	return nil
}

// leave closes the pod's row, and wakes the other pods if they can use its slots.
func (p *Pod) leave(ctx context.Context) {
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := p.Heartbeats.Leave(leaving, p.PodID()); err != nil {
		p.Log.WarnContext(ctx, "could not close the pod's row: its lease will expire instead", telemetry.Err, err)
	} else if lanes, err := store.VoidSlots(leaving, p.Heartbeats, []string{p.PodID()}); err == nil && len(lanes) > 0 && !p.NotificationsDisabled() {
		_ = p.Heartbeats.Notify(leaving, p.Heartbeats.Pool()) // best effort; sweeps find the free slots too
	}
}

// start registers the pod, waiting for the database if necessary.
func (p *Pod) start(ctx context.Context, kinds []string, schedules []Schedule) error {
	if p.opts.Disabled {
		kinds = []string{}
	}
	p.Handle(kinds)
	for backoff := routine.NewBackoff(); ; {
		err := p.open(ctx, schedules)
		if err == nil {
			p.Damped.Over(ctx, engine.NotStarted)
			p.warnDrained(ctx)
			return nil
		}
		if !store.Transient(err) && !errors.Is(err, errClosedAtOnce) || !backoff.Wait(ctx) {
			return fmt.Errorf("start the runner: %w", err)
		}
		p.Damped.Warn(ctx, engine.NotStarted, telemetry.Err, p.Commands.Explain(err))
	}
}

// open prepares the database for the pod and registers it.
func (p *Pod) open(ctx context.Context, schedules []Schedule) error {
	if err := p.checkSchema(ctx); err != nil {
		return err
	}
	if _, err := upkeep.EnsurePartitions(ctx, p.Heartbeats, maintenance.PartitionsAhead); err != nil {
		if _, answered := errors.AsType[*pgconn.PgError](err); !answered || store.Denied(err) != "" {
			return err
		}
		// Another transaction holds a lock, or an event trigger forbids DDL. Until a day is created, its rows go to the default partition.
		p.Log.WarnContext(ctx, "could not create partitions, retrying within a minute", telemetry.Err, err)
	}
	if err := p.MakeLanes(ctx); err != nil {
		return err
	}
	if err := p.declareKinds(ctx); err != nil {
		return err
	}
	if err := p.Declare(ctx, schedules); err != nil {
		return err
	}
	return p.register(ctx)
}

// warnDrained logs a warning if the pod is drained and therefore does not start any jobs.
func (p *Pod) warnDrained(ctx context.Context) {
	if p.Lanes.Drained() {
		p.Log.WarnContext(ctx, "this pod is drained by an operator: it starts no jobs until it is undrained", telemetry.Pod, p.opts.Name)
	}
}

// warmAfter is the delay before a pod that has no jobs prepares its hot connection.
const warmAfter = 500 * time.Millisecond

// warm opens the hot connection that stays open and prepares the hot statements on it, so that an idle pod's first jobs start as fast as
// later ones. It does so at startup, and whenever connections have been closed, for example at the end of their maximum lifetime. A pod
// that is running jobs needs no preparation.
func (p *Pod) warm(ctx context.Context) {
	for routine.Sleep(ctx, warmAfter) {
		if p.opts.Disabled {
			return
		}
		if p.Runs.Len() == 0 {
			if err := p.Store.Warm(ctx, 1); err != nil && ctx.Err() == nil {
				p.Log.DebugContext(ctx, "could not warm up connections: the first jobs start more slowly", telemetry.Err, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-p.Store.Closed():
		}
	}
}

// Close closes the pod's connections.
func (p *Pod) Close() {
	p.all.Flush()
	p.front.Flush()
	p.Ends.Drain()
	p.Feed.Close()
	p.Store.Close()
	p.Heartbeats.Close()
}

// Options configures a pod. See runner.Options.
type Options struct {
	identity.Options
	Schema                                                       string
	BehindPooler, TraceQueries                                   bool
	MaxAge, ApprovalTTL                                          time.Duration
	FourEyes                                                     bool
	MinScheduleInterval                                          time.Duration
	PassEvery                                                    time.Duration // approximate interval between two searches for orphaned claims
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	Lanes                                                        []admin.BootLane
	OnEnd, OnRetry                                               telemetry.Hook
	TracerProvider                                               trace.TracerProvider
	Logger                                                       *slog.Logger
}

// contextHandler adds the context's request ID and trace to each log record.
type contextHandler struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h contextHandler) Handle(ctx context.Context, line slog.Record) error {
	if id := job.OriginOf(ctx).RequestID; id != "" {
		line.AddAttrs(slog.String(telemetry.RequestID, id))
	}
	if at := trace.SpanContextFromContext(ctx); at.IsValid() {
		line.AddAttrs(slog.String(telemetry.TraceID, at.TraceID().String()), slog.String(telemetry.SpanID, at.SpanID().String()))
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements [slog.Handler].
func (h contextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contextHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h contextHandler) WithGroup(name string) slog.Handler {
	return contextHandler{h.Handler.WithGroup(name)}
}
