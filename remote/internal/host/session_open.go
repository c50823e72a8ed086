package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Receive opens or takes over a remote worker's row. It serves the worker until the worker's stream (ctx) ends, and after that for as long
// as the worker sends heartbeats and runs jobs. It returns [ErrClosed] if the row is closed, [job.ErrInvalid] if the options are invalid,
// and [job.ErrShutdown] if this pod is not running.
func (h *Host) Receive(ctx context.Context, o Options) (g *Session, err error) {
	if !h.pod.Lease.Trusted() || h.pod.Closing.Load() {
		return nil, fmt.Errorf("receive worker %s: %w", job.Storable(o.ID, 50), job.ErrShutdown)
	}
	if o, err = o.withDefaults(h); err != nil {
		return nil, fmt.Errorf("receive worker %q: %w", job.Storable(o.ID, 50), err)
	}
	for _, k := range o.Kinds {
		if known := h.pod.Kinds[k.Name]; known != nil && known.InDatabase {
			return nil, fmt.Errorf("%w: receive worker %s: kind %q writes to the database", job.ErrInvalid, o.ID, k.Name)
		}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	g = &Session{host: h, opts: o, over: make(chan struct{}), gone: make(chan struct{}), proxies: map[engine.ClaimKey]*proxy{}}
	g.newEngine()
	inner := g.engine
	inner.Marks = h.marksFor(inner.HandledKinds)
	policies, err := json.Marshal(o.Kinds)
	if err != nil {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, err)
	}
	info := store.PodInfo{PodID: o.ID, Name: o.Name, Version: o.Version, Kinds: inner.HandledKinds, Slots: o.Slots, Limits: inner.Limits()}
	row, err := store.OpenWorker(ctx, h.pod.RemoteStore, info, o.Owner, key, policies, h.pod.Opts.LeaseFor)
	if errors.Is(err, job.ErrLeaseLost) {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, ErrClosed)
	}
	if err != nil {
		return nil, h.pod.DBError(err)
	}
	g.stream, g.key, inner.Store = row.Stream, row.Key, h.pod.Store.OfStream(row.Stream)
	g.heard.Store(true)
	claiming, stop := context.WithCancel(ctx)
	g.stop, g.claims = stop, claiming.Done()
	before, ok := h.add(g) // from now on, calls from the worker find this session
	if !ok {
		stop()
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, job.ErrShutdown)
	}
	if before != nil {
		before.finish(ErrSuperseded)
		<-before.gone
	}
	sent := time.Now()
	b, err := store.WorkerHeartbeat(ctx, h.pod.RemoteStore, o.ID, h.pod.Opts.LeaseFor, false, g.stream, true)
	if err == nil && !b.Open {
		err = ErrSuperseded
	}
	var adopted []store.Adopted
	if err == nil && len(o.Running) > 0 {
		adopted, err = store.ClaimsToAdopt(ctx, h.pod.RemoteStore, o.ID, g.known(o.Running))
		g.engine.Resize(o.Slots - (len(g.known(o.Running)) - len(adopted))) // verdicts does the same
	}
	if err != nil {
		stop()
		close(g.gone)
		h.remove(g)
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, h.pod.DBError(err))
	}
	inner.FirstBeat(sent, b)
	if g.stream > 1 {
		inner.Unknown.Raise() // finds and returns claims that never reached the worker
	}
	g.adopt(adopted)
	go g.live(claiming)
	h.pod.Metrics.RemoteStreams.Inc()
	h.pod.Log.InfoContext(ctx, "remote worker accepted", telemetry.Pod, o.Name, telemetry.PodID, o.ID, telemetry.Slots, o.Slots, telemetry.Kinds, inner.HandledKinds, telemetry.Running, len(adopted))
	return g, nil
}

// newEngine creates the session's engine.
func (g *Session) newEngine() {
	host, o := g.host, g.opts
	opts := host.pod.Opts
	opts.Name, opts.Version, opts.Slots, opts.PollEvery, opts.Disabled, opts.ClaimAhead = o.Name, o.Version, o.Slots, sessionPollEvery, false, false
	opts.PodID, opts.MayUse = o.ID, o.Lane
	g.engine = engine.New(host.pod.Services, opts, member{g})
	maps.Copy(g.engine.Kinds, host.pod.Kinds) // the next step may run on the pod
	var names []string
	for _, k := range o.Kinds {
		g.engine.Kinds[k.Name] = g.remoteKind(k, host.pod.Kinds[k.Name])
		if !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
	}
	g.engine.Handle(names)
}

// remoteKind returns the handler for one of a remote worker's kinds. Options that the worker sent take precedence; the others come from the
// pod if it knows the kind.
func (g *Session) remoteKind(declared engine.RemoteKind, known *engine.Handler) *engine.Handler {
	k := &engine.Handler{Name: declared.Name, Timeout: g.host.pod.Opts.Timeout}
	if known != nil {
		*k = *known
	}
	if declared.Timeout != nil {
		k.Timeout = *declared.Timeout
	}
	if declared.MaxAttempts > 0 {
		k.MaxAttempts = declared.MaxAttempts
	}
	if declared.Backoff != nil {
		k.Backoff = *declared.Backoff
	}
	if declared.MaxCrashes > 0 {
		k.MaxCrashes = declared.MaxCrashes
	}
	if declared.StaleAfter != nil {
		k.StaleAfter = declared.StaleAfter
	}
	// The job runs under the worker's lease. If the worker's heartbeats stop, this pod cannot know whether the worker is still running the
	// job.
	k.KeepRunning = true
	k.Run, k.Elsewhere = g.handle, true
	if known == nil {
		k.RunSeconds = func(seconds float64) { g.host.ran(g.host.pod.Metrics, declared.Name, seconds) }
	}
	return k
}
