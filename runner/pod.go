package runner

import (
	"github.com/trapeze-run/trapeze/internal/engine"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/calendar"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// pod is the process in the fleet: one engine, and the loops that listen, fire schedules, maintain the tables, feed clients and serve
// remote workers.
type pod struct {
	*engine.Engine
	opts podOptions

	remoteStore *store.Store // heartbeats and messages of remote workers: they must not delay the pod's own
	feedStore   *store.Store // of the feed
	feed        *feed.Feed   // on connections of its own, while a client streams

	calendar    *calendar.Calendar
	maintenance *maintenance.Maintenance
	fleet       fleet
	collecting  sync.Mutex
	peers       wait.Signal // asks for a wake-up of the other pods

	pass  slowPass    // searches orphaned claims
	known knownClaims // counted for doctor

	hosting sync.Mutex
	workers workerSessions
}

// workerSessions are the sessions of the remote workers that a pod serves, each with an engine.
type workerSessions interface {
	// each calls do for the engine of each session.
	each(do func(*engine.Engine))
	// engine returns the engine of a boot id; nil: no session has it.
	engine(boot string) *engine.Engine
	// connected returns the number of sessions that have a stream.
	connected() int
	// leave ends all sessions for the shutdown of the pod, and blocks until they have ended.
	leave()
}

// noSessions are those of a pod that does not serve remote workers.
type noSessions struct{}

func (noSessions) each(func(*engine.Engine))    {}
func (noSessions) engine(string) *engine.Engine { return nil }
func (noSessions) connected() int               { return 0 }
func (noSessions) leave()                       {}

// sessions returns the sessions of remote workers.
func (p *pod) sessions() workerSessions {
	p.hosting.Lock()
	defer p.hosting.Unlock()
	return p.workers
}

// serveWorkers registers the sessions that open returns, unless the pod has some already, and returns the registered ones.
func (p *pod) serveWorkers(open func() workerSessions) workerSessions {
	p.hosting.Lock()
	defer p.hosting.Unlock()
	if p.workers == (noSessions{}) {
		p.workers = open()
	}
	return p.workers
}

// The sizes of the runner's pools, and what it opens beside them.
const (
	storeConnections = 4
	frontConnections = 3
	heartConnections = 3 // one beats; a connection that died without a word is given up, and may take 15 s to be gone
	watchConnections = 2
	afarConnections  = 3
	directLines      = 2 // LISTEN and the lock of the maintenance
	exports          = 2 // at once, a connection each
)

// newPod returns a pod on the host's pool, of which it copies the configuration for connections of its own. It does not connect.
func newPod(pool *pgxpool.Pool, o podOptions) (*pod, error) {
	ctx := context.Background()
	main, err := store.New(ctx, pool, store.Options{Schema: o.Schema, BehindPooler: o.BehindPooler, Connections: storeConnections,
		PodConnections: PodConnections})
	if err != nil {
		return nil, err
	}
	front, err := main.Beside(ctx, frontConnections)
	if err != nil {
		return nil, err
	}
	heart, err := main.Steady(ctx, heartConnections)
	if err != nil {
		return nil, err
	}
	afar, err := main.Beside(ctx, afarConnections)
	if err != nil {
		return nil, err
	}
	watch, err := main.Beside(ctx, watchConnections)
	if err != nil {
		return nil, err
	}
	log, metrics := slog.New(identified{o.Logger.Handler()}), telemetry.New()
	shared := engine.NewServices(pool, main, front, heart, log, metrics, o.TracerProvider)
	p := &pod{
		opts:        o,
		remoteStore: afar, feedStore: watch, feed: feed.New(watch, feed.Options{Logger: o.Logger, Metrics: metrics}),
		peers: wait.NewSignal(), pass: slowPass{every: passEvery}, known: knownClaims{reported: -1}, workers: noSessions{},
	}
	p.Engine = engine.New(shared, o.Options, podMember{p})
	p.calendar = newCalendar(p)
	p.maintenance = newMaintenance(p)
	return p, nil
}

// run runs jobs of some kinds, and schedules, until ctx ends, then drains.
func (p *pod) run(ctx context.Context, kinds []string, schedules []declaredSchedule) error {
	if err := p.start(ctx, kinds, schedules); err != nil {
		return err
	}
	// The loops that keep the pod alive go on until its last handler has ended: they do not end with ctx.
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var claimers, life sync.WaitGroup
	life.Go(func() { p.WatchTrust(alive, p.feed.Interrupt) })
	life.Go(func() { p.notifyPeers(alive) })
	life.Go(func() { p.beatAfterReset(alive) })
	p.pass.rest()
	claimers.Go(func() { p.listen(ctx) })
	claimers.Go(func() { p.maintenance.Run(ctx) })
	claimers.Go(func() { p.calendar.Run(ctx) })
	claimers.Go(func() { p.warm(ctx) })
	claimers.Go(func() {
		<-ctx.Done()
		p.StopClaims()
		p.feed.Close() // its clients go on elsewhere, and keep no server from stopping
		p.Log.InfoContext(ctx, "runner draining", telemetry.Pod, p.opts.Name, telemetry.Running, p.Runs.Count())
	})
	p.Log.InfoContext(ctx, "runner started", telemetry.Pod, p.opts.Name, telemetry.Boot, p.Boot(), telemetry.Slots, p.Slots(), telemetry.Kinds, p.HandledKinds)
	// On shutdown: first everything that starts handlers, then the handlers, then what keeps their lease, and the pod's row last.
	p.Live(ctx, func(alive context.Context) {
		claimers.Wait()
		p.sessions().leave() // their workers go on, and come back to other pods
		p.Drain(alive)
	})
	die()
	life.Wait()
	p.leave(ctx)
	p.Log.InfoContext(ctx, "runner stopped", telemetry.Pod, p.opts.Name)
	return nil
}

// leave closes the pod's row and wakes the other pods for the slots that it had.
func (p *pod) leave(ctx context.Context) {
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := p.Heartbeats.Leave(leaving, p.Boot()); err != nil {
		p.Log.WarnContext(ctx, "the pod's row could not be closed: its lease runs out instead", telemetry.Err, err)
	} else if lanes, err := store.VoidSlots(leaving, p.Heartbeats, []string{p.Boot()}); err == nil && len(lanes) > 0 && !p.Deaf() {
		_ = p.Heartbeats.Notify(leaving, p.Heartbeats.Pool()) // a hint; and where the slots were not taken back, a sweep does it
	}
}

// start registers the pod; it waits for the database as long as ctx lasts.
func (p *pod) start(ctx context.Context, kinds []string, schedules []declaredSchedule) error {
	if p.opts.Disabled {
		kinds = []string{}
	}
	p.Handle(kinds)
	for backoff := wait.NewBackoff(); ; {
		err := p.open(ctx, schedules)
		if err == nil {
			if err = p.housed(); err == nil {
				p.Damped.Over(ctx, engine.NotStarted)
				p.sayDrained(ctx)
				return nil
			}
			_ = p.Heartbeats.Leave(ctx, p.Boot()) // or its lease runs out
		}
		if !store.Transient(err) && !errors.Is(err, errClosedAtOnce) || !backoff.Wait(ctx) {
			return fmt.Errorf("start the runner: %w", err)
		}
		p.Damped.Warn(ctx, engine.NotStarted, telemetry.Err, err)
	}
}

// open prepares the database for the pod and registers it.
func (p *pod) open(ctx context.Context, schedules []declaredSchedule) error {
	if err := p.checkSchema(ctx); err != nil {
		return err
	}
	if _, err := upkeep.EnsurePartitions(ctx, p.Heartbeats, maintenance.PartitionsAhead); err != nil {
		return err
	}
	if err := p.bootstrap(ctx); err != nil {
		return err
	}
	if err := p.declare(ctx, schedules); err != nil {
		return err
	}
	return p.register(ctx)
}

// sayDrained warns of what would otherwise look like a pod that does not work.
func (p *pod) sayDrained(ctx context.Context) {
	if p.Lanes.Drained() {
		p.Log.WarnContext(ctx, "this pod starts nothing until it is resumed: an operator drained it", telemetry.Pod, p.opts.Name)
	}
}

// warmAfter is when a pod that has found nothing to do gets ready for what may come.
const warmAfter = 500 * time.Millisecond

// warm opens connections and has the hot statements planned on them, so that the first jobs of an idle pod are as fast as
// the next: at the start, and after connections were closed, at the end of their life for example. A pod that has jobs at
// once is warm by then.
func (p *pod) warm(ctx context.Context) {
	for wait.For(ctx, warmAfter) {
		if p.opts.Disabled {
			return
		}
		if p.Runs.Count() == 0 {
			err := p.Commands.Warm(ctx, 1)
			if err == nil {
				err = p.Store.Warm(ctx, engine.Flushers+1) // and one that claims
			}
			if err != nil && ctx.Err() == nil {
				p.Log.DebugContext(ctx, "connections are not warm: the first jobs wait for that", telemetry.Err, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-p.Store.Closed():
		}
	}
}

// follow has the engines of this pod and of its sessions apply a command, without waiting for a notification: what is submitted here
// afterwards meets it.
func (p *pod) follow(ctx context.Context) {
	if !p.Lease.Registered() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followWithin)
	defer cancel()
	now := time.Now()
	follow := func(e *engine.Engine) { e.Following.After(ctx, now, e.ReadSettings) }
	follow(p.Engine)
	p.sessions().each(follow)
}

// followWithin is how long a command waits at most for this pod's own heartbeat.
const followWithin = time.Second

// close closes the pod's connections.
func (p *pod) close() {
	p.feed.Close()
	p.feedStore.Close()
	p.Store.Close()
	p.Commands.Close()
	p.Heartbeats.Close()
	p.remoteStore.Close()
}
