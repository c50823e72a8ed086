package runner

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Receive opens the row of a remote worker, or takes it over, and serves it until its stream ends (ctx), and beyond that as long as it
// is heard of and runs something. lost are those of Running that are not the worker's any more. Errors: [ErrGuestClosed],
// [job.ErrInvalid], [job.ErrShutdown] when this pod does not run.
func (r *Runner) Receive(ctx context.Context, o GuestOptions) (g *Guest, err error) {
	if !r.lease.trusted() || r.closing.Load() {
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
	g = &Guest{host: r, opts: o, over: make(chan struct{}), gone: make(chan struct{}), proxies: map[claimKey]*proxy{}}
	g.newEngine()
	inner := g.r
	inner.marks = r.guests.marksFor(inner.mineAll)
	policies, err := json.Marshal(o.Kinds)
	if err != nil {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, err)
	}
	info := store.PodInfo{Boot: o.ID, Name: o.Name, Version: o.Version, Kinds: inner.mineAll, Slots: o.Slots}
	row, err := store.OpenGuest(ctx, r.remoteStore, info, o.Owner, key, policies, r.opts.LeaseFor)
	if errors.Is(err, job.ErrLeaseLost) {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, ErrGuestClosed)
	}
	if err != nil {
		return nil, r.dbError(err)
	}
	g.stream, g.key, inner.store = row.Stream, row.Key, r.store.OfStream(row.Stream)
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
	b, err := store.GuestHeartbeat(ctx, r.remoteStore, o.ID, r.opts.LeaseFor, false, g.stream, true)
	if err == nil && !b.Open {
		err = ErrSuperseded
	}
	var adopted []store.Adopted
	if err == nil && len(o.Running) > 0 {
		adopted, err = store.Adopt(ctx, r.remoteStore, o.ID, g.known(o.Running))
		g.crowded(len(g.known(o.Running)) - len(adopted))
	}
	if err != nil {
		stop()
		close(g.gone)
		r.guests.remove(g)
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, r.dbError(err))
	}
	inner.lease.beaten(sent, b.Now, b.Left, true)
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

// newEngine gives a session its engine.
func (g *Guest) newEngine() {
	host, o := g.host, g.opts
	opts := host.opts
	opts.Name, opts.Version, opts.Slots, opts.PollEvery, opts.Kinds, opts.Disabled = o.Name, o.Version, o.Slots, guestPollEvery, nil, false
	g.r = newEngine(host.services, opts, o.Lane)
	g.r.member = g
	g.r.lease.boot = o.ID
	maps.Copy(g.r.kinds, host.kinds) // a step may follow that runs on a pod
	for _, k := range o.Kinds {
		g.r.kinds[k.Name] = g.proxied(k, host.kinds[k.Name])
		if !g.r.mine[k.Name] {
			g.r.mine[k.Name] = true
			g.r.mineAll = append(g.r.mineAll, k.Name)
		}
	}
}

// proxied is the kind of a remote worker: as the worker says, else as the pod does, should it know the kind too.
func (g *Guest) proxied(told GuestKind, known *kind) *kind {
	k := &kind{name: told.Name, timeout: g.host.opts.Timeout}
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
	k.run = g.handle
	if known == nil {
		k.runSeconds = prometheus.ObserverFunc(func(seconds float64) { g.host.guests.ran(g.r.metrics, told.Name, seconds) })
	}
	return k
}
