package runner

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Receive opens the row of a remote worker, or takes it over, and serves it until its stream ends (ctx), and beyond that as long as it
// is heard of and runs something. lost are those of Running that are not the worker's any more. Errors: [ErrSessionClosed],
// [job.ErrInvalid], [job.ErrShutdown] when this pod does not run.
func (h *Host) Receive(ctx context.Context, o SessionOptions) (g *Session, err error) {
	if !h.pod.lease.trusted() || h.pod.closing.Load() {
		return nil, fmt.Errorf("receive worker %s: %w", job.Storable(o.ID, 50), job.ErrShutdown)
	}
	if o, err = o.withDefaults(h); err != nil {
		return nil, fmt.Errorf("receive worker %q: %w", job.Storable(o.ID, 50), err)
	}
	for _, k := range o.Kinds {
		if known := h.pod.kinds[k.Name]; known != nil && known.inDatabase {
			return nil, fmt.Errorf("receive worker %s: kind %q writes into the database: %w", o.ID, k.Name, job.ErrInvalid)
		}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	g = &Session{host: h, opts: o, over: make(chan struct{}), gone: make(chan struct{}), proxies: map[claimKey]*proxy{}}
	g.newEngine()
	inner := g.engine
	inner.marks = h.marksFor(inner.mineAll)
	policies, err := json.Marshal(o.Kinds)
	if err != nil {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, err)
	}
	info := store.PodInfo{Boot: o.ID, Name: o.Name, Version: o.Version, Kinds: inner.mineAll, Slots: o.Slots}
	row, err := store.OpenGuest(ctx, h.pod.remoteStore, info, o.Owner, key, policies, h.pod.opts.LeaseFor)
	if errors.Is(err, job.ErrLeaseLost) {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, ErrSessionClosed)
	}
	if err != nil {
		return nil, h.pod.dbError(err)
	}
	g.stream, g.key, inner.store = row.Stream, row.Key, h.pod.store.OfStream(row.Stream)
	g.heard.Store(true)
	claiming, stop := context.WithCancel(ctx)
	g.stop, g.claims = stop, claiming.Done()
	before, ok := h.add(g) // calls of the worker find it from here on
	if !ok {
		stop()
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, job.ErrShutdown)
	}
	if before != nil {
		before.finish(ErrSuperseded)
		<-before.gone
	}
	sent := time.Now()
	b, err := store.GuestHeartbeat(ctx, h.pod.remoteStore, o.ID, h.pod.opts.LeaseFor, false, g.stream, true)
	if err == nil && !b.Open {
		err = ErrSuperseded
	}
	var adopted []store.Adopted
	if err == nil && len(o.Running) > 0 {
		adopted, err = store.Adopt(ctx, h.pod.remoteStore, o.ID, g.known(o.Running))
		g.crowded(len(g.known(o.Running)) - len(adopted))
	}
	if err != nil {
		stop()
		close(g.gone)
		h.remove(g)
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, h.pod.dbError(err))
	}
	inner.begin(sent, b)
	inner.unsure(g.stream > 1) // what was claimed for it and never arrived is found and given back
	g.adopt(adopted)
	go g.live(claiming)
	h.pod.metrics.RemoteStreams.Inc()
	h.pod.log.InfoContext(ctx, "remote worker received", telemetry.Pod, o.Name, telemetry.Boot, o.ID, telemetry.Slots, o.Slots, telemetry.Kinds, inner.mineAll, telemetry.Running, len(adopted))
	return g, nil
}

// newEngine gives a session its engine.
func (g *Session) newEngine() {
	host, o := g.host, g.opts
	opts := host.pod.opts.engineOptions
	opts.Name, opts.Version, opts.Slots, opts.PollEvery, opts.Disabled = o.Name, o.Version, o.Slots, sessionPollEvery, false
	opts.Boot, opts.MayUse = o.ID, o.Lane
	g.engine = newEngine(host.pod.services, opts, g)
	maps.Copy(g.engine.kinds, host.pod.kinds) // a step may follow that runs on a pod
	var names []string
	for _, k := range o.Kinds {
		g.engine.kinds[k.Name] = g.proxied(k, host.pod.kinds[k.Name])
		if !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
	}
	g.engine.handle(names)
}

// proxied is the kind of a remote worker: as the worker says, else as the pod does, should it know the kind too.
func (g *Session) proxied(told SessionKind, known *kind) *kind {
	k := &kind{name: told.Name, timeout: g.host.pod.opts.Timeout}
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
		k.runSeconds = prometheus.ObserverFunc(func(seconds float64) { g.host.ran(g.host.pod.metrics, told.Name, seconds) })
	}
	return k
}
