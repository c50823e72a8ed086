package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// sessionPollInterval is the interval at which a session polls for jobs when nothing wakes it.
const sessionPollInterval = 500 * time.Millisecond

// Session represents a remote worker whose stream this pod serves. It has its own engine, row, lanes and runs, and shares the pod's store,
// connections, metrics and log. Its handlers are proxies: each sends its job on the stream and waits for the report. Remote jobs are
// therefore claimed, fenced, handed over, retried and finished like any other job.
//
// The worker's lease is renewed only while it sends heartbeats. The lease outlives the stream, so the worker can reconnect to this pod or
// to another one and keep its running jobs. Only the session with the latest stream number, stored in remote_workers.stream, is valid.
type Session struct {
	engine   *engine.Engine // not shared with the pod
	host     *Host
	opts     Options
	stream   int64
	key      []byte
	heard    atomic.Bool     // a heartbeat has arrived since the last renewal
	claims   <-chan struct{} // closed when the worker receives no more jobs
	over     chan struct{}   // closed when the session has ended
	why      error           // set before over is closed
	end      sync.Once
	gone     chan struct{}      // closed when all of the session's goroutines have ended
	stop     context.CancelFunc // stops claiming
	mu       sync.Mutex
	proxies  map[engine.ClaimKey]*proxy
	stacks   map[engine.ClaimKey]bool // claims whose handler stacks were requested
	reported recent                   // claims that ended with a report on this pod
}

// Claim identifies a claim in calls from a remote worker.
type Claim struct {
	ID, Fence int64
	Token     []byte // the token from its assignment
}

// Errors returned for calls from remote workers.
var (
	// ErrClosed means that the worker's lease expired, or that its ID belongs to another principal. The worker restarts with a new ID.
	ErrClosed = errors.New("the worker's row is closed")
	// ErrSuperseded means that the worker has opened a newer stream.
	ErrSuperseded = errors.New("the worker opened another stream")
	// ErrWrongToken means that the token in a call does not match the job's assignment.
	ErrWrongToken = job.ErrWrongToken
)

// errLeft ends the session of a worker that has left, or that has lost its stream while it ran no jobs.
var errLeft = errors.New("it left, or lost its stream without running jobs")

// live serves the worker until the session ends. It claims jobs until claiming is cancelled, which happens when the stream ends. After
// that, it waits for the running jobs.
func (g *Session) live(claiming context.Context) {
	defer g.host.remove(g)
	defer close(g.gone)
	g.engine.Wake()
	g.engine.Live(claiming, func(alive context.Context) {
		g.giveBackUnlisted()
		if g.engine.WaitIdle(alive, g.over) {
			g.finish(nil)
		}
		g.engine.CloseRuns()
	})
	g.host.pod.Log.InfoContext(claiming, "remote worker gone", telemetry.Pod, g.opts.Name, telemetry.PodID, g.opts.ID, telemetry.Why, cmp.Or(g.why, errLeft))
}

// finish ends the session. The worker's running jobs continue.
func (g *Session) finish(why error) {
	g.end.Do(func() {
		g.why = why
		close(g.over)
		g.stop()
	})
}

// Stopped returns a channel that is closed when the worker receives no more jobs.
func (g *Session) Stopped() <-chan struct{} { return g.claims }

// Over returns a channel that is closed when the session has ended. After that, [Session.Why] returns the reason.
func (g *Session) Over() <-chan struct{} { return g.over }

// Why returns why the session ended, or nil if its worker left without running jobs.
func (g *Session) Why() error { return g.why }

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
		if known := h.pod.Kinds[k.Name]; known != nil && known.RequiresDatabase {
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
	row, err := store.OpenWorker(ctx, h.pod.RemoteStore, info, o.Owner, key, policies, h.pod.Opts.LeaseDuration)
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
	b, err := store.WorkerHeartbeat(ctx, h.pod.RemoteStore, o.ID, h.pod.Opts.LeaseDuration, false, g.stream, true)
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
	opts.Name, opts.Version, opts.Slots, opts.PollInterval, opts.Disabled, opts.ClaimAhead = o.Name, o.Version, o.Slots, sessionPollInterval, false, false
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
	if declared.InactivityTimeout != nil {
		k.InactivityTimeout = declared.InactivityTimeout
	}
	// The job runs under the worker's lease. If the worker's heartbeats stop, this pod cannot know whether the worker is still running the
	// job.
	k.ContinueWithoutDatabase = true
	k.Run, k.Elsewhere = g.handle, true
	if known == nil {
		k.RunSeconds = func(seconds float64) { g.host.ran(g.host.pod.Metrics, declared.Name, seconds) }
	}
	return k
}
