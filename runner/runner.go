package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/calendar"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// Runner submits and runs jobs in this process. Make one with [New], register handlers with [Handle], then call
// [Runner.Run]. Its methods are safe for concurrent use.
type Runner struct {
	*engine // of the pod

	remoteStore *store.Store // heartbeats and messages of remote workers: they must not delay the pod's own
	feedStore   *store.Store // of the feed
	feed        *feed.Feed   // on connections of its own, while a client streams

	mu       sync.Mutex
	started  bool
	declared []declaration // schedules
	remote   bool          // it has no database: see NewRemote

	calendar    *calendar.Calendar
	maintenance *maintenance.Maintenance
	guests      guests
	fleet       fleet
	collecting  sync.Mutex
	peers       wait.Signal // asks for a wake-up of the other pods

	pass  slowPass    // searches orphaned claims
	known knownClaims // counted for doctor

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

// PodConnections is how many connections a pod opens at most beside the host's pool, RemoteConnections how many more while it
// serves remote workers.
const (
	PodConnections    = storeConnections + frontConnections + heartConnections + watchConnections + directLines + exports
	RemoteConnections = afarConnections
)

// New returns a runner on the host's pool, of which it copies the configuration for a few connections of its own. It does
// not connect. It reports every mistake in the options at once.
func New(pool *pgxpool.Pool, o Options) (*Runner, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("runner options: %w", err)
	}
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
	shared := services{
		pool: pool, store: main, front: front, heart: heart, log: log, damped: newDamped(log), metrics: metrics,
		tracing: tracing{o.TracerProvider}, count: newCounts(metrics),
	}
	shared.waiters, shared.journal = newWaiters(shared), journal.NewWriter(front, log, shared.dbError)
	r := &Runner{
		engine:      newEngine(shared, o, nil),
		remoteStore: afar, feedStore: watch, feed: feed.New(watch, feed.Options{Logger: o.Logger, Metrics: metrics}),
		peers: wait.NewSignal(),
		pass:  slowPass{every: passEvery}, known: knownClaims{reported: -1},
	}
	r.member, r.guests.adoptions = podMember{r}, newAdoptions(main.Held)
	r.calendar = newCalendar(r)
	r.maintenance = newMaintenance(r)
	return r, nil
}

// Run runs jobs until ctx ends, then drains: claims stop, handlers get Options.ShutdownGrace to end before their context
// is cancelled, and what is left then is handed back to the other pods. It returns nil after a drain, when every
// goroutine it started has ended, except those of handlers that ignore the end of their context. Call it once.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.start(ctx); err != nil {
		return err
	}
	// What keeps the pod alive goes on until its last handler has ended: it does not end with ctx.
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var claimers, life sync.WaitGroup
	life.Go(func() { r.beat(alive) })
	life.Go(func() { r.watchTrust(alive) })
	r.pass.rest()
	life.Go(func() { r.compare(alive) })
	life.Go(func() { r.flusher.run(alive) })
	life.Go(func() { r.keepBalance(alive) })
	life.Go(func() { r.notifyPeers(alive) })
	life.Go(func() { r.beatAfterReset(alive) })
	claimers.Go(func() { r.poller.Run(ctx) })
	claimers.Go(func() { r.listen(ctx) })
	claimers.Go(func() { r.maintenance.Run(ctx) })
	claimers.Go(func() { r.calendar.Run(ctx) })
	claimers.Go(func() { r.warm(ctx) })
	r.log.InfoContext(ctx, "runner started", telemetry.Pod, r.opts.Name, telemetry.Boot, r.boot(), telemetry.Slots, r.slots(), telemetry.Kinds, r.mineAll)
	<-ctx.Done()

	// First whatever starts handlers, then the handlers, then what keeps their lease, and the pod's row last.
	r.closing.Store(true)
	r.feed.Close() // who watches goes on elsewhere, and keeps no server from stopping
	r.log.InfoContext(ctx, "runner draining", telemetry.Pod, r.opts.Name, telemetry.Running, r.runs.count())
	claimers.Wait()
	r.guests.leave() // their workers go on, and come back to other pods
	life.Go(func() { r.returnSlots(alive) })
	r.drain(alive)
	die()
	life.Wait()
	r.hands.close()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := r.heart.Leave(leaving, r.boot()); err != nil {
		r.log.WarnContext(ctx, "the pod's row could not be closed: its lease runs out instead", telemetry.Err, err)
	} else if lanes, err := store.VoidSlots(leaving, r.heart, []string{r.boot()}); err == nil && len(lanes) > 0 && !r.deaf() {
		_ = r.heart.Notify(leaving, r.heart.Pool()) // a hint; and where the slots were not taken back, a sweep does it
	}
	r.log.InfoContext(ctx, "runner stopped", telemetry.Pod, r.opts.Name)
	return nil
}

// start checks the wiring and registers the pod; it waits for the database as long as ctx lasts.
func (r *Runner) start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return errors.New("run: this runner has been run before")
	}
	if r.remote {
		return fmt.Errorf("run: %w: package remote/worker runs it", ErrNoDatabase)
	}
	mine, err := r.kindsToRun()
	if err != nil {
		return err
	}
	if err := r.checkDeclared(); err != nil {
		return err
	}
	r.started = true
	if r.opts.Disabled {
		mine = []string{}
	}
	r.mineAll, r.mine = mine, map[string]bool{}
	for _, name := range mine {
		r.mine[name] = true
	}
	for backoff := wait.NewBackoff(); ; {
		err := r.checkSchema(ctx)
		if err == nil {
			if _, err = upkeep.EnsurePartitions(ctx, r.heart, maintenance.PartitionsAhead); err == nil {
				if err = r.bootstrap(ctx); err == nil {
					if err = r.declare(ctx); err == nil {
						err = r.register(ctx)
					}
				}
			}
		}
		if err == nil {
			if err = r.housed(); err == nil {
				r.damped.over(ctx, notStarted)
				r.sayDrained(ctx)
				return nil
			}
			_ = r.heart.Leave(ctx, r.boot()) // or its lease runs out
		}
		if !store.Transient(err) && !errors.Is(err, errClosedAtOnce) || !backoff.Wait(ctx) {
			return fmt.Errorf("start the runner: %w", err)
		}
		r.damped.warn(ctx, notStarted, telemetry.Err, err)
	}
}

// sayDrained warns of what would otherwise look like a pod that does not work.
func (r *Runner) sayDrained(ctx context.Context) {
	if r.lanes.Drained() {
		r.log.WarnContext(ctx, "this pod starts nothing until it is resumed: an operator drained it", telemetry.Pod, r.opts.Name)
	}
}

// warmAfter is when a pod that has found nothing to do gets ready for what may come.
const warmAfter = 500 * time.Millisecond

// warm opens connections and has the hot statements planned on them, so that the first jobs of an idle pod are as fast as
// the next: at the start, and after connections were closed, at the end of their life for example. A pod that has jobs at
// once is warm by then.
func (r *Runner) warm(ctx context.Context) {
	for wait.For(ctx, warmAfter) {
		if r.opts.Disabled {
			return
		}
		if r.runs.count() == 0 {
			err := r.front.Warm(ctx, 1)
			if err == nil {
				err = r.store.Warm(ctx, flushers+1) // and one that claims
			}
			if err != nil && ctx.Err() == nil {
				r.log.DebugContext(ctx, "connections are not warm: the first jobs wait for that", telemetry.Err, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-r.store.Closed():
		}
	}
}

// Close closes the runner's own connections. Call it after Run, or instead of it in a program that only submits.
func (r *Runner) Close() {
	r.feed.Close()
	r.feedStore.Close()
	r.store.Close()
	r.front.Close()
	r.heart.Close()
	r.remoteStore.Close()
}

// Boot returns the id of this process as a pod: a random one for every start, and a new one after a lease that was lost.
func (r *Runner) Boot() string { return r.boot() }

// Metrics are the pod's instruments, to be registered where the host's are.
func (r *Runner) Metrics() prometheus.Collector { return instruments{r} }

// Running is the number of jobs that run in this process.
func (r *Runner) Running() int { return r.runs.count() }

// ReasonDrained is why a pod is not ready that an operator has drained: it starts nothing until it is resumed.
const ReasonDrained = "drained by an operator"

// ReasonCutOff is why a pod is not ready whose heartbeats have failed until the trust in its lease was over. What it can still read may
// be out of date: a connection may lead to a standby, or to a primary that no longer is one.
const ReasonCutOff = "the database does not answer heartbeats"

// Ready reports whether this pod may take work, and if not, why.
func (r *Runner) Ready() (ready bool, reasons []string) {
	switch {
	case r.closing.Load():
		reasons = append(reasons, "draining")
	case !r.lease.registered():
		reasons = append(reasons, "not started")
	case !r.lease.trusted():
		reasons = append(reasons, ReasonCutOff)
	case r.lanes.Drained():
		reasons = append(reasons, ReasonDrained)
	}
	return len(reasons) == 0, reasons
}

func (r *engine) slots() int {
	if r.opts.Disabled {
		return 0
	}
	return r.opts.Slots
}
