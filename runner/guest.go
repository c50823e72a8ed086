package runner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/poller"
)

// guestPollEvery is how often it is looked for jobs for a remote worker without any other cause.
const guestPollEvery = 500 * time.Millisecond

// Guest is a remote worker as the pod serves it that its stream has reached: a runner of its own inside the pod's, with the pod's
// store, connections, metrics and log, and with a row, lanes and runs of its own. Its handlers are proxies: each has its job sent
// on the stream and waits for the report. So a job that runs elsewhere is claimed, fenced, handed over, retried and ended as any
// other.
//
// Its lease is renewed only while the worker is heard of. It outlives its stream: the worker may come back, to this pod or to
// another one, with what it runs. Whoever opened the latest stream is the one that decides; pods.stream says who.
type Guest struct {
	r       *Runner // its own
	host    *Runner
	opts    GuestOptions
	stream  int64
	key     []byte
	heard   atomic.Bool     // of, since the latest beat
	claims  <-chan struct{} // closed when it is given nothing more
	over    chan struct{}   // closed when the guest has ended
	why     error           // set before over is closed
	end     sync.Once
	gone    chan struct{}      // closed when nothing of it goes on
	stop    context.CancelFunc // of claims
	beats   atomic.Int64       // heartbeats of the worker that were taken in
	mu      sync.Mutex
	proxies map[claimKey]*proxy
}

// GuestOptions describe a remote worker.
type GuestOptions struct {
	// ID is a random UUID of the worker's process.
	ID string
	// Name and Version are for people. Default name: the id.
	Name, Version string
	// Owner is the principal that speaks for it; nobody else may.
	Owner string
	// Kinds are what it runs, and what holds for them.
	Kinds []GuestKind
	// Lane says from which lanes it is given jobs. Default: all.
	Lane func(name string) bool
	// Slots is how many jobs it runs at once.
	Slots int
	// Running are the claims that it says it has, when it comes back.
	Running []GuestClaim
	// AckWithin is for how long a job that was sent may go unlisted by the worker's heartbeats before it is given back.
	// Default: two heartbeats.
	AckWithin time.Duration
	// Send sends a job. It must not wait for the network for long; its error ends the stream.
	Send func(Assignment) error
}

// GuestKind is a kind that a remote worker runs. What is nil or 0 is as the pod says.
type GuestKind struct {
	Name        string
	Timeout     *time.Duration
	MaxAttempts int
	MaxCrashes  int
	Backoff     Backoff
	StaleAfter  *time.Duration
	KeepRunning bool // while no pod answers: the worker's affair alone
}

// GuestClaim is a claim as a remote worker names it.
type GuestClaim struct {
	ID, Fence int64
	Token     []byte // that came with its assignment
}

// Errors of what concerns remote workers.
var (
	// ErrGuestClosed says that the worker's lease ran out, or that its id is somebody else's: it begins anew with another id.
	ErrGuestClosed = errors.New("the worker's row is closed")
	// ErrSuperseded says that the worker has opened a newer stream.
	ErrSuperseded = errors.New("the worker has opened another stream")
	// ErrUnacknowledged says that the worker did not list a job that it was sent.
	ErrUnacknowledged = errors.New("the worker did not acknowledge a job in time")
	// ErrWrongToken says that something was said of a job with a token that is not of its assignment.
	ErrWrongToken = job.ErrWrongToken
)

// guests are the remote workers that a pod serves.
type guests struct {
	mu   sync.Mutex
	byID map[string]*Guest
	wg   sync.WaitGroup
	shut bool
}

func (s *guests) find(id string) *Guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// add takes a guest in, unless the pod stops, and returns the one of the same id before it.
func (s *guests) add(g *Guest) (before *Guest, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil, false
	}
	if s.byID == nil {
		s.byID = map[string]*Guest{}
	}
	before = s.byID[g.opts.ID]
	s.byID[g.opts.ID] = g
	s.wg.Add(1)
	return before, true
}

func (s *guests) remove(g *Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[g.opts.ID] == g {
		delete(s.byID, g.opts.ID)
	}
	s.wg.Done()
}

// each calls do for every guest, outside the lock.
func (s *guests) each(do func(*Guest)) {
	s.mu.Lock()
	list := make([]*Guest, 0, len(s.byID))
	for _, g := range s.byID {
		list = append(list, g)
	}
	s.mu.Unlock()
	for _, g := range list {
		do(g)
	}
}

// wake has every guest look for jobs.
func (s *guests) wake() {
	s.each(func(g *Guest) {
		g.r.heard.Store(true)
		g.r.wake()
	})
}

// tell ends the handler of a run of a guest's.
func (s *guests) tell(l job.Lease, why job.Reason) {
	if g := s.find(l.Pod); g != nil {
		if one := g.r.runs.find(l.JobID, l.Fence); one != nil {
			g.r.cancelRun(one, why)
		}
	}
}

// leave ends all guests, and returns when they have ended: their workers go on, and come back to other pods.
func (s *guests) leave() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	s.each(func(g *Guest) { g.finish(job.ErrShutdown) })
	s.wg.Wait()
}

// Receive opens the row of a remote worker, or takes it over, and serves it until its stream ends (ctx), and beyond that as long as it
// is heard of and runs something. lost are those of Running that are not the worker's any more. Errors: [ErrGuestClosed],
// [job.ErrInvalid], [job.ErrShutdown] when this pod does not run.
func (r *Runner) Receive(ctx context.Context, o GuestOptions) (g *Guest, err error) {
	if !r.pod.trusted() || r.closing.Load() {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, job.ErrShutdown)
	}
	if o, err = o.withDefaults(r); err != nil {
		return nil, fmt.Errorf("receive worker %q: %w", o.ID, err)
	}
	for _, k := range o.Kinds {
		if known := r.kinds[k.Name]; known != nil && known.inDatabase {
			return nil, fmt.Errorf("receive worker %s: kind %q writes into the database: %w", o.ID, k.Name, job.ErrInvalid)
		}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	inner := r.within(o)
	row, err := r.heart.OpenGuest(ctx, store.PodInfo{Boot: o.ID, Name: o.Name, Version: o.Version, Kinds: inner.mineAll, Slots: o.Slots}, o.Owner, key, r.opts.LeaseFor)
	if errors.Is(err, job.ErrLeaseLost) {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, ErrGuestClosed)
	}
	if err != nil {
		return nil, r.dbError(err)
	}
	g = &Guest{r: inner, host: r, opts: o, stream: row.Stream, key: row.Key, over: make(chan struct{}), gone: make(chan struct{}), proxies: map[claimKey]*proxy{}}
	inner.guest = g
	g.heard.Store(true)
	before, ok := r.guests.add(g)
	if !ok {
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, job.ErrShutdown)
	}
	if before != nil {
		before.finish(ErrSuperseded)
		<-before.gone
	}
	claiming, stop := context.WithCancel(ctx)
	g.stop, g.claims = stop, claiming.Done()
	sent := time.Now()
	b, err := r.heart.GuestHeartbeat(ctx, o.ID, r.opts.LeaseFor, false, g.stream, true)
	if err == nil && !b.Open {
		err = ErrSuperseded
	}
	var adopted []store.Adopted
	if err == nil {
		adopted, err = r.heart.Adopt(ctx, o.ID, g.known(o.Running))
	}
	if err != nil {
		stop()
		close(g.gone)
		r.guests.remove(g)
		return nil, fmt.Errorf("receive worker %s: %w", o.ID, r.dbError(err))
	}
	inner.pod.beaten(sent, b.Left, true)
	inner.told(b)
	inner.lanes.unsureAll() // what the worker held of limited lanes is asked for
	if g.stream > 1 {
		inner.doubt.raise() // what was claimed for it and never arrived is found and given back
	}
	g.adopt(adopted)
	go g.live(claiming)
	r.log.InfoContext(ctx, "remote worker received", telemetry.Pod, o.Name, telemetry.Boot, o.ID, telemetry.Slots, o.Slots, telemetry.Kinds, inner.mineAll, telemetry.Running, len(adopted))
	return g, nil
}

func (o GuestOptions) withDefaults(r *Runner) (GuestOptions, error) {
	var errs []error
	if id, err := uuid.Parse(o.ID); err != nil || id.String() != o.ID {
		errs = append(errs, fmt.Errorf("worker id %q: want a random UUID in lower case: %w", clean(o.ID, 50), job.ErrInvalid))
	}
	if o.Slots < 1 || o.Slots > maxGuestSlots {
		errs = append(errs, fmt.Errorf("%d slots, want 1 to %d: %w", o.Slots, maxGuestSlots, job.ErrInvalid))
	}
	if len(o.Kinds) == 0 || len(o.Kinds) > maxGuestKinds {
		errs = append(errs, fmt.Errorf("%d kinds, want 1 to %d: %w", len(o.Kinds), maxGuestKinds, job.ErrInvalid))
	}
	for _, k := range o.Kinds {
		if k.Name == "" || len(k.Name) > job.MaxKindBytes || clean(k.Name, job.MaxKindBytes) != k.Name {
			errs = append(errs, fmt.Errorf("kind %q: want 1 to %d bytes: %w", clean(k.Name, 50), job.MaxKindBytes, job.ErrInvalid))
		}
	}
	if len(o.Running) > 2*maxGuestSlots {
		errs = append(errs, fmt.Errorf("%d running jobs: %w", len(o.Running), job.ErrTooLarge))
	}
	if o.Name = clean(o.Name, 100); o.Name == "" {
		o.Name = o.ID
	}
	o.Version = clean(o.Version, 100)
	set(&o.AckWithin, 2*r.opts.HeartbeatEvery)
	return o, errors.Join(errs...)
}

const (
	maxGuestSlots = 1000
	maxGuestKinds = 500
)

// within makes the runner of a guest.
func (r *Runner) within(o GuestOptions) *Runner {
	opts := r.opts
	opts.Name, opts.Version, opts.Slots, opts.PollEvery, opts.Kinds, opts.Disabled = o.Name, o.Version, o.Slots, guestPollEvery, nil, false
	in := &Runner{
		pool: r.pool, store: r.store, front: r.front, heart: r.heart, watch: r.watch, feed: r.feed, opts: opts, log: r.log, metrics: r.metrics,
		tracing: r.tracing, count: r.count, kinds: map[string]*kind{}, started: true, mine: map[string]bool{}, mineAll: []string{},
		lanes: newLanes(o.Slots, guestPollEvery), pod: newPod(), runs: newRuns(), waiters: r.waiters,
		reread: make(chan struct{}, 1), hurry: make(chan struct{}), peers: r.peers,
	}
	in.pod.boot = o.ID
	in.lanes.mayUse = o.Lane // nil: all
	in.hands, in.flusher = newHands(in.work), newFlusher(in)
	in.firstEvents.write = r.front.EmitMany
	in.unbalanced.some = make(chan struct{}, 1)
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
	k.runSeconds = r.metrics.RunSeconds.WithLabelValues(told.Name)
	return k
}

// live serves the worker until the guest ends: claims as long as the stream does (ctx), and after that what it still runs.
func (g *Guest) live(ctx context.Context) {
	defer g.host.guests.remove(g)
	defer close(g.gone)
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	var life sync.WaitGroup
	life.Go(func() { g.r.beat(alive) })
	life.Go(func() { g.r.flusher.run(alive) })
	life.Go(func() { g.r.keepBalance(alive) })
	var claims sync.WaitGroup
	claims.Go(func() { g.r.poller.Run(ctx) })
	g.r.wake()
	select {
	case <-ctx.Done(): // the stream
	case <-g.over:
	}
	g.stop()
	g.r.closing.Store(true)
	claims.Wait()
	g.linger(alive)
	g.settleRest()
	g.r.hands.close()
	die()
	life.Wait()
	g.host.log.InfoContext(ctx, "remote worker gone", telemetry.Pod, g.opts.Name, telemetry.Boot, g.opts.ID, telemetry.Why, g.why)
}

// linger waits until the worker, which has lost its stream, runs nothing more of what this pod knows, or the guest has ended.
func (g *Guest) linger(ctx context.Context) {
	g.giveBackUnsent()
	for {
		g.r.runs.mu.Lock()
		empty := g.r.runs.empty
		g.r.runs.mu.Unlock()
		select {
		case <-g.over:
			return
		case <-empty:
			if g.r.runs.count() == 0 {
				g.finish(nil)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// settleRest waits for the ends that are being written, and has every proxy return that still waits.
func (g *Guest) settleRest() {
	g.r.runs.wait(2*time.Second, nil)
	g.r.runs.close()
}

// finish ends the guest: what its worker runs is left as it is.
func (g *Guest) finish(why error) {
	g.end.Do(func() {
		g.why = why
		close(g.over)
	})
}

// Stopped is closed when the worker is sent nothing more: its stream is to end.
func (g *Guest) Stopped() <-chan struct{} { return g.claims }

// Over is closed when the guest has ended: after it, [Guest.Why] tells why.
func (g *Guest) Over() <-chan struct{} { return g.over }

// Why is why the guest has ended: nil when its worker left and ran nothing.
func (g *Guest) Why() error { return g.why }

// heartbeat renews the lease of a pod, or of a guest whose worker was heard of, and asks what a pod must know.
func (r *Runner) heartbeat(ctx context.Context, boot string) (store.Beat, error) {
	if r.guest == nil {
		return r.heart.Heartbeat(ctx, boot, r.opts.LeaseFor, r.closing.Load(), r.calendar.looksAfter()...)
	}
	heard := r.guest.heard.Swap(false)
	b, err := r.heart.GuestHeartbeat(ctx, boot, r.opts.LeaseFor, r.closing.Load(), r.guest.stream, heard)
	if err != nil && heard {
		r.guest.heard.Store(true)
	}
	return b, err
}

// GuestTimes are for how long a remote worker's lease lasts, and how often it is to be heard of.
func (r *Runner) GuestTimes() (lease, every time.Duration) {
	return r.opts.LeaseFor, r.opts.HeartbeatEvery
}

// PodName is the display name of this pod.
func (r *Runner) PodName() string { return r.opts.Name }
