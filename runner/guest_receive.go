package runner

import (
	"github.com/trapeze-run/trapeze/internal/slots"

	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/poller"
)

// Receive opens the row of a remote worker, or takes it over, and serves it until its stream ends (ctx), and beyond that as long as it
// is heard of and runs something. lost are those of Running that are not the worker's any more. Errors: [ErrGuestClosed],
// [job.ErrInvalid], [job.ErrShutdown] when this pod does not run.
func (r *Runner) Receive(ctx context.Context, o GuestOptions) (g *Guest, err error) {
	if !r.pod.trusted() || r.closing.Load() {
		return nil, fmt.Errorf("receive worker %s: %w", job.Storable(o.ID, 50), job.ErrShutdown)
	}
	if o, err = o.withDefaults(r); err != nil {
		return nil, fmt.Errorf("receive worker %q: %w", job.Storable(o.ID, 50), err)
	}
	for _, k := range o.Kinds {
		if known := r.kinds[k.Name]; known != nil && known.inDatabase {
			return nil, fmt.Errorf("receive worker %s: kind %q writes into the database: %w", o.ID, k.Name, job.ErrInvalid)
		}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	inner := r.within(o)
	inner.marks = r.guests.marksFor(inner.mineAll)
	policies, err := json.Marshal(o.Kinds)
	if err != nil {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, err)
	}
	info := store.PodInfo{Boot: o.ID, Name: o.Name, Version: o.Version, Kinds: inner.mineAll, Slots: o.Slots}
	row, err := r.afar.OpenGuest(ctx, info, o.Owner, key, policies, r.opts.LeaseFor)
	if errors.Is(err, job.ErrLeaseLost) {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, ErrGuestClosed)
	}
	if err != nil {
		return nil, r.dbError(err)
	}
	g = &Guest{r: inner, host: r, opts: o, stream: row.Stream, key: row.Key, over: make(chan struct{}), gone: make(chan struct{}), proxies: map[claimKey]*proxy{}}
	inner.guest, inner.store = g, r.store.OfStream(row.Stream)
	g.heard.Store(true)
	claiming, stop := context.WithCancel(ctx)
	g.stop, g.claims = stop, claiming.Done()
	before, ok := r.guests.add(g) // calls of the worker find it from here on
	if !ok {
		stop()
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, job.ErrShutdown)
	}
	if before != nil {
		before.finish(ErrSuperseded)
		<-before.gone
	}
	sent := time.Now()
	b, err := r.afar.GuestHeartbeat(ctx, o.ID, r.opts.LeaseFor, false, g.stream, true)
	if err == nil && !b.Open {
		err = ErrSuperseded
	}
	var adopted []store.Adopted
	if err == nil && len(o.Running) > 0 {
		adopted, err = r.afar.Adopt(ctx, o.ID, g.known(o.Running))
		g.crowded(len(g.known(o.Running)) - len(adopted))
	}
	if err != nil {
		stop()
		close(g.gone)
		r.guests.remove(g)
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, r.dbError(err))
	}
	inner.pod.beaten(sent, b.Now, b.Left, true)
	inner.told(b)
	inner.lanes.Unsure() // what the worker held of limited lanes is asked for
	if g.stream > 1 {
		inner.doubt.raise() // what was claimed for it and never arrived is found and given back
	}
	g.adopt(adopted)
	go g.live(claiming)
	r.metrics.RemoteStreams.Inc()
	r.log.InfoContext(ctx, "remote worker received", telemetry.Pod, o.Name, telemetry.Boot, o.ID, telemetry.Slots, o.Slots, telemetry.Kinds, inner.mineAll, telemetry.Running, len(adopted))
	return g, nil
}

// within makes the runner of a guest.
func (r *Runner) within(o GuestOptions) *Runner {
	opts := r.opts
	opts.Name, opts.Version, opts.Slots, opts.PollEvery, opts.Kinds, opts.Disabled = o.Name, o.Version, o.Slots, guestPollEvery, nil, false
	in := &Runner{
		pool: r.pool, store: r.store, front: r.front, heart: r.heart, afar: r.afar, watch: r.watch, feed: r.feed, opts: opts, log: r.log, damped: r.damped, metrics: r.metrics,
		tracing: r.tracing, count: r.count, kinds: map[string]*kind{}, started: true, mine: map[string]bool{}, mineAll: []string{},
		lanes: slots.NewLanes(o.Slots, guestPollEvery, o.Lane), marks: &slots.Marks{}, pod: newPod(), runs: newRuns(), waiters: r.waiters,
		reread: wait.NewSignal(), hurry: make(chan struct{}), peers: r.peers,
		comparing: wait.NewSignal(),
	}
	in.pod.boot = o.ID
	in.hands, in.flusher = newHands(in.work), newFlusher(in)
	in.firstEvents.write = r.front.EmitMany
	in.unbalanced.some = wait.NewSignal()
	in.poller = poller.New(net{in}, guestPollEvery)
	for name, k := range r.kinds { // a step may follow that runs on a pod
		in.kinds[name] = k
	}
	for _, k := range o.Kinds {
		in.kinds[k.Name] = in.proxied(k, r.kinds[k.Name])
		if !in.mine[k.Name] {
			in.mine[k.Name] = true
			in.mineAll = append(in.mineAll, k.Name)
		}
	}
	return in
}

// proxied is the kind of a remote worker: as the worker says, else as the pod does, should it know the kind too.
func (r *Runner) proxied(told GuestKind, known *kind) *kind {
	k := &kind{name: told.Name, timeout: r.opts.Timeout}
	if known != nil {
		*k = *known
	}
	if told.Timeout != nil {
		k.timeout = *told.Timeout
	}
	if told.MaxAttempts > 0 {
		k.maxAttempts, k.backoff = told.MaxAttempts, told.Backoff
	}
	if told.MaxCrashes > 0 {
		k.maxCrashes = told.MaxCrashes
	}
	if told.StaleAfter != nil {
		k.staleAfter = told.StaleAfter
	}
	// Its lease is the worker's: when that is not heard of any more, nobody here knows whether it still works on the job.
	k.keepRunning = true
	k.run = func(ctx context.Context, c *core) (*Outcome, error) { return r.guest.handle(ctx, c) }
	if known == nil {
		k.runSeconds = prometheus.ObserverFunc(func(seconds float64) { r.guest.host.guests.ran(r.metrics, told.Name, seconds) })
	}
	return k
}
