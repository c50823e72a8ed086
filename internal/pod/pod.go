package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/calendar"
	"github.com/trapeze-run/trapeze/internal/ends"
	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// Pod is a process in the fleet: one engine, and the loops that listen, fire schedules, maintain the tables, feed clients and serve
// remote workers.
type Pod struct {
	*engine.Engine
	opts Options

	RemoteStore *store.Store // heartbeats and messages of remote workers, which must not delay the pod's own
	Slow        *store.Store // reads that may take long, and the maintenance, which must not delay commands
	Feed        *feed.Feed   // reads while a client streams

	Calendar    *calendar.Calendar
	listener    listener
	maintenance *maintenance.Maintenance
	fleet       fleet
	collecting  sync.Mutex
	peers       wait.Signal // requests a wake-up of the other pods
	runs        atomic.Bool // from the beginning of Run to its end: heartbeats are sent

	pass  slowPass    // searches for orphaned claims
	known knownClaims // counted for doctor

	hosting sync.Mutex
	workers WorkerSessions
}

// WorkerSessions are the sessions of the remote workers that a pod serves, each with an engine.
type WorkerSessions interface {
	// Each calls do for the engine of each session.
	Each(do func(*engine.Engine))
	// Engine returns the engine of a boot id; nil: no session has it.
	Engine(boot string) *engine.Engine
	// Connected returns the number of sessions that have a stream.
	Connected() int
	// Leave ends all sessions for the shutdown of the pod, and blocks until they have ended.
	Leave()
}

// noSessions is the value of a pod that does not serve remote workers.
type noSessions struct{}

func (noSessions) Each(func(*engine.Engine))    {}
func (noSessions) Engine(string) *engine.Engine { return nil }
func (noSessions) Connected() int               { return 0 }
func (noSessions) Leave()                       {}

// sessions returns the sessions of remote workers.
func (p *Pod) sessions() WorkerSessions {
	p.hosting.Lock()
	defer p.hosting.Unlock()
	return p.workers
}

// ServeWorkers registers the sessions that open returns, unless the pod already has some. It returns the registered ones.
func (p *Pod) ServeWorkers(open func() WorkerSessions) WorkerSessions {
	p.hosting.Lock()
	defer p.hosting.Unlock()
	if p.workers == (noSessions{}) {
		p.workers = open()
	}
	return p.workers
}

// New returns a pod on the host's pool, whose configuration it copies for connections of its own. It does not connect.
func New(pool *pgxpool.Pool, o Options) (*Pod, error) {
	s, err := newStores(context.Background(), pool, o)
	if err != nil {
		return nil, err
	}
	log, metrics := slog.New(contextHandler{o.Logger.Handler()}), telemetry.New()
	shared := engine.NewServices(pool, s.hot, s.commands, s.heartbeat, log, metrics, o.TracerProvider, ends.Hooks{End: o.OnEnd, Retry: o.OnRetry})
	p := &Pod{
		opts:        o,
		RemoteStore: s.feed, Slow: s.slow, Feed: feed.New(s.feed, feed.Options{Logger: o.Logger, Metrics: metrics}),
		listener: listener{gone: errors.New("not open yet")}, peers: wait.NewSignal(), pass: slowPass{every: o.PassEvery}, known: knownClaims{reported: -1}, workers: noSessions{},
	}
	p.Engine = engine.New(shared, o.Options, podMember{p})
	p.Calendar = newCalendar(p)
	p.maintenance = newMaintenance(p)
	return p, nil
}

// Run runs jobs of some kinds, and schedules, until ctx ends, then drains.
func (p *Pod) Run(ctx context.Context, kinds []string, schedules []Schedule) error {
	p.runs.Store(true)
	defer p.runs.Store(false)
	if err := p.start(ctx, kinds, schedules); err != nil {
		if ctx.Err() == nil {
			return err
		}
		p.leave(ctx) // it may have registered: the reply is unknown
		p.Log.WarnContext(ctx, "runner stopped before it had started", telemetry.Pod, p.opts.Name, telemetry.Err, err)
		return nil
	}
	// The loops that keep the pod alive run until its last handler has ended, not only until ctx ends.
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var claimers, life sync.WaitGroup
	life.Go(func() { p.WatchTrust(alive, p.Feed.Interrupt) })
	life.Go(func() { p.notifyPeers(alive) })
	life.Go(func() { p.beatAfterReset(alive) })
	p.pass.rest()
	claimers.Go(func() { p.listen(ctx) })
	claimers.Go(func() { p.maintenance.Run(ctx) })
	claimers.Go(func() { p.Calendar.Run(ctx) })
	claimers.Go(func() { p.warm(ctx) })
	claimers.Go(func() {
		<-ctx.Done()
		p.StopClaims()
		p.Feed.Close() // its clients reconnect elsewhere, and must not delay the shutdown of a server
		p.Log.InfoContext(ctx, "runner draining", telemetry.Pod, p.opts.Name, telemetry.Running, p.Runs.Len())
	})
	p.Log.InfoContext(ctx, "runner started", telemetry.Pod, p.opts.Name, telemetry.Boot, p.Boot(), telemetry.Slots, p.Slots(), telemetry.Kinds, p.HandledKinds)
	// Shut down in order: first everything that starts handlers, then the handlers, then the heartbeat that keeps their lease, and
	// finally the pod's row.
	p.Live(ctx, func(alive context.Context) {
		claimers.Wait()
		p.sessions().Leave() // their workers continue and reconnect to other pods
		p.Drain(alive)
	})
	die()
	life.Wait()
	p.leave(ctx)
	p.Ends.Drain()
	p.Log.InfoContext(ctx, "runner stopped", telemetry.Pod, p.opts.Name)
	return nil
}

// leave closes the pod's row and wakes the other pods for the slots that it had.
func (p *Pod) leave(ctx context.Context) {
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := p.Heartbeats.Leave(leaving, p.Boot()); err != nil {
		p.Log.WarnContext(ctx, "could not close the pod's row: its lease will expire instead", telemetry.Err, err)
	} else if lanes, err := store.VoidSlots(leaving, p.Heartbeats, []string{p.Boot()}); err == nil && len(lanes) > 0 && !p.Deaf() {
		_ = p.Heartbeats.Notify(leaving, p.Heartbeats.Pool()) // best effort; a sweep also finds the free slots
	}
}

// start registers the pod. It waits for the database until ctx ends.
func (p *Pod) start(ctx context.Context, kinds []string, schedules []Schedule) error {
	if p.opts.Disabled {
		kinds = []string{}
	}
	p.Handle(kinds)
	for backoff := wait.NewBackoff(); ; {
		err := p.open(ctx, schedules)
		if err == nil {
			if err = p.checkLanes(); err == nil {
				p.Damped.Over(ctx, engine.NotStarted)
				p.warnDrained(ctx)
				return nil
			}
			_ = p.Heartbeats.Leave(ctx, p.Boot()) // if this fails, its lease expires
		}
		if !store.Transient(err) && !errors.Is(err, errClosedAtOnce) || !backoff.Wait(ctx) {
			return fmt.Errorf("start the runner: %w", err)
		}
		p.Damped.Warn(ctx, engine.NotStarted, telemetry.Err, err)
	}
}

// open prepares the database for the pod and registers it.
func (p *Pod) open(ctx context.Context, schedules []Schedule) error {
	if err := p.checkSchema(ctx); err != nil {
		return err
	}
	if _, err := upkeep.EnsurePartitions(ctx, p.Heartbeats, maintenance.PartitionsAhead); err != nil {
		return err
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

// warnDrained logs a warning if the pod is drained and will therefore start no jobs.
func (p *Pod) warnDrained(ctx context.Context) {
	if p.Lanes.Drained() {
		p.Log.WarnContext(ctx, "this pod is drained by an operator: it starts no jobs until it is resumed", telemetry.Pod, p.opts.Name)
	}
}

// warmAfter is the time after which an idle pod prepares for its first jobs.
const warmAfter = 500 * time.Millisecond

// warm opens the hot connection that stays open and prepares the hot statements on it, so that the first jobs of an idle pod are as fast
// as later ones. It does so at the start, and after connections were closed, for example at the end of their lifetime. A pod that has
// jobs at once needs no preparation.
func (p *Pod) warm(ctx context.Context) {
	for wait.For(ctx, warmAfter) {
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

// Follow makes the engines of this pod and of its sessions apply a command without waiting for a notification, so that it applies to
// later submissions here. A pod that is just registering may have read the settings from before the command.
func (p *Pod) Follow(ctx context.Context) {
	if !p.runs.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followWithin)
	defer cancel()
	now := time.Now()
	follow := func(e *engine.Engine) { e.Following.AppliedSince(ctx, now, e.ReadSettings) }
	follow(p.Engine)
	p.sessions().Each(follow)
}

// followWithin limits how long a command waits for this pod's own heartbeat.
const followWithin = time.Second

// Close closes the pod's connections.
func (p *Pod) Close() {
	p.Ends.Drain()
	p.Feed.Close()
	p.Store.Close()
	p.Heartbeats.Close()
}
