// Package worker runs handlers in a program that has no database. Pods send jobs to the program, and it reports their outcomes. Handlers
// are written and registered as on a pod:
//
//	r, err := runner.NewRemote(runner.RemoteOptions{})
//	runner.Handle(r, func(ctx context.Context, j *runner.Job[Render]) (*runner.Outcome, error) { … })
//	w, err := worker.New(r, worker.Options{Server: "https://jobs.example.org", Token: token})
//	err = w.Run(ctx)
//
// A worker that loses its connection to a pod does not lose its jobs. It opens a new stream to any pod that responds, and keeps its running
// jobs. If it cannot reach a pod for the duration of a lease, its jobs run elsewhere with a higher fence, and its own results are rejected.
package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// Options configure a [Worker].
type Options struct {
	// Server is the address of the pods, https://host:port. Separate several addresses with commas; they are tried in turn. http:// is
	// allowed only for loopback addresses.
	Server string
	// Token authenticates the worker. Leave it empty if, for example, a client certificate authenticates the worker.
	Token string
	// TLS holds the client certificate and the trusted authorities. By default, the system's authorities are trusted.
	TLS *tls.Config
	// Name is the display name. It defaults to the host name.
	Name string
	// Version is the program's version, for display.
	Version string
	// Slots is the maximum number of jobs that the worker runs concurrently. The default is 4 × GOMAXPROCS, at most 1,000.
	Slots int
	// Kinds lists the registered kinds whose jobs the worker accepts. The default is all registered kinds.
	Kinds []string
	// ShutdownGrace is the time for which handlers can continue after Run's context is cancelled. The default is 20s.
	ShutdownGrace time.Duration
	// Logger receives the worker's log lines. The default is [slog.Default].
	Logger *slog.Logger
}

// Worker runs jobs that pods send to it. Create one with [New] and call [Worker.Run] once.
type Worker struct {
	engine  *engine.Engine // holds the registered kinds
	opts    Options
	log     *slog.Logger
	servers servers
	kinds   []engine.RemoteKind
	keeps   map[string]bool // kinds whose handlers continue while no pod can be reached

	mu      sync.Mutex
	id      string
	tasks   map[key]*task
	every   time.Duration           // the heartbeat interval, as set by the pods
	trusted time.Time               // until when the worker can assume that it holds its jobs
	cut     context.CancelCauseFunc // cancels the stream
	working sync.WaitGroup
	kick    routine.Signal // requests a heartbeat now
	noted   routine.Signal // requests a heartbeat soon
	slots   chan struct{}  // holds one element for each running handler
	freed   routine.Signal // a handler that was started before the worker's restart has returned
	beaten  chan struct{}  // closed after a heartbeat; nil if nothing is waiting for it
	drains  bool
	greets  bool // a pod has opened a stream, but no heartbeat has been acknowledged since then
}

// New returns a worker that runs the handlers registered with r, which must have been created by [runner.NewRemote].
func New(r *runner.Runner, o Options) (*Worker, error) {
	if o.Name == "" {
		o.Name, _ = os.Hostname()
	}
	if o.Slots == 0 {
		o.Slots = min(4*runtime.GOMAXPROCS(0), 1000)
	}
	if o.ShutdownGrace == 0 {
		o.ShutdownGrace = 20 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &Worker{engine: inside.Of(r).Pod.Engine, opts: o, log: o.Logger, tasks: map[key]*task{}, every: time.Second, kick: routine.NewSignal(), noted: routine.NewSignal(), freed: routine.NewSignal(), slots: make(chan struct{}, max(o.Slots, 0))}
	for address := range strings.SplitSeq(o.Server, ",") {
		address = strings.TrimSpace(address)
		client, err := o.client(address)
		if err != nil {
			return nil, fmt.Errorf("remote worker: %w", err)
		}
		w.servers.all = append(w.servers.all, server{address, client})
	}
	if err := inside.Of(r).Check(); err != nil {
		return nil, fmt.Errorf("remote worker: %w", err)
	}
	if w.kinds = engine.RemoteKinds(w.engine); len(w.kinds) == 0 {
		return nil, errors.New("remote worker: no registered handlers")
	}
	w.keeps = map[string]bool{}
	for _, k := range w.kinds {
		w.keeps[k.Name] = k.ContinueWithoutDatabase
	}
	if err := o.validate(w.keeps); err != nil {
		return nil, err
	}
	return w, nil
}

// validate returns a joined error for all invalid options.
func (o Options) validate(registered map[string]bool) error {
	var errs []error
	if o.Slots < 1 || o.Slots > 1000 {
		errs = append(errs, fmt.Errorf("remote worker: %d slots, want 1 to 1000", o.Slots))
	}
	for _, name := range o.Kinds {
		if _, is := registered[name]; !is {
			errs = append(errs, fmt.Errorf("remote worker: no handler for the kind %q: registered are %s", name, strings.Join(slices.Sorted(maps.Keys(registered)), ", ")))
		}
	}
	return errors.Join(errs...)
}

// client returns a client for one address.
func (o Options) client(server string) (remotepb.WorkersClient, error) {
	if strings.Contains(server, "@") { // the error omits the address, which may contain a password
		return nil, errors.New("a server's address has no user and password: want https://host:port, and Options.Token (TRAPEZE_TOKEN)")
	}
	at, err := url.Parse(server)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("server %q: want https://host:port, or http:// of a loopback address", server)
	}
	transport := &http.Transport{
		TLSClientConfig: o.TLS, Protocols: new(http.Protocols), Proxy: http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		// If a pod vanishes, pings detect its disappearance long before the lease expires.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 3 * time.Second},
	}
	if transport.Protocols.SetHTTP2(true); at.Scheme == "http" {
		if ip := net.ParseIP(at.Hostname()); at.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, fmt.Errorf("server %q: http:// is allowed only for loopback addresses: use https://", server)
		}
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return remotepb.NewWorkersClient(&http.Client{Transport: bearer{o.Token, transport}}, strings.TrimSuffix(server, "/"), connect.WithGRPC(), connect.WithReadMaxBytes(16<<20)), nil
}

// bearer adds the worker's token to every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// Run runs jobs until ctx is cancelled, and then drains the worker: handlers get Options.ShutdownGrace to finish before their contexts are
// cancelled, and unfinished jobs are handed back. Run then returns nil. It returns an error if the pods reject the worker permanently.
func (w *Worker) Run(ctx context.Context) error {
	w.id = uuid.NewString()
	w.log.InfoContext(ctx, "remote worker started", telemetry.PodID, w.id, telemetry.Pod, w.opts.Name, telemetry.Slots, w.opts.Slots)
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var beats sync.WaitGroup
	beats.Go(func() { w.beat(alive) })
	err := w.stream(ctx)
	drains := w.isOpen() || len(w.list()) > 0
	if drains {
		w.drain(alive)
	}
	die()
	beats.Wait()
	if drains {
		w.leave(context.WithoutCancel(ctx))
		w.log.InfoContext(ctx, "remote worker stopped", telemetry.PodID, w.currentID())
	}
	return err
}

// drain waits for the running jobs, cancels the handlers that are still running after ShutdownGrace, and finally hands back the remaining
// jobs.
func (w *Worker) drain(ctx context.Context) {
	w.mu.Lock()
	w.drains = true
	w.mu.Unlock()
	w.log.InfoContext(ctx, "remote worker draining", telemetry.PodID, w.currentID(), telemetry.Running, len(w.list()))
	w.heartbeatNow()
	if !w.waitEnded(w.opts.ShutdownGrace) {
		for _, t := range w.list() {
			t.cancel(job.ErrShutdown)
		}
		if !w.waitEnded(2 * time.Second) {
			for _, t := range w.list() {
				t.abandon()
			}
			w.waitEnded(2 * time.Second)
		}
	}
}

// leave closes the worker's row. It is called only when no heartbeat is in flight, because a heartbeat would find the row closed.
func (w *Worker) leave(ctx context.Context) {
	leaving, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := w.servers.now().client.Heartbeat(leaving, connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: w.currentID(), Running: w.running(), Draining: true, Leaving: true})); err != nil {
		w.log.WarnContext(ctx, "could not notify a pod of the shutdown: the lease will expire", telemetry.Err, err)
	}
}

// waitEnded waits at most within for the running jobs to end and reports whether they all did.
func (w *Worker) waitEnded(within time.Duration) bool {
	over := make(chan struct{})
	go func() {
		w.working.Wait()
		close(over)
	}()
	select {
	case <-over:
		return true
	case <-time.After(within):
		return len(w.list()) == 0
	}
}

// sent returns the kinds that the worker requests.
func (w *Worker) sent() []string {
	if len(w.opts.Kinds) > 0 {
		return w.opts.Kinds
	}
	return slices.Sorted(maps.Keys(w.keeps))
}

// isOpen reports whether a pod may hold an open row for the worker.
func (w *Worker) isOpen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.greets || !w.trusted.IsZero()
}

// greet records that a pod serves the worker. The next acknowledged heartbeat logs it.
func (w *Worker) greet() {
	w.mu.Lock()
	w.greets = true
	w.mu.Unlock()
	w.heartbeatNow()
}

func (w *Worker) currentID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id
}

func (w *Worker) heartbeatNow() {
	w.kick.Set()
}

// server is a pod, or a load balancer in front of several pods, that the worker can connect to.
type server struct {
	address string
	client  remotepb.WorkersClient
}

// servers holds the addresses in Options.Server and selects one at a time. It is safe for concurrent use.
type servers struct {
	all []server

	mu sync.Mutex
	at int
}

// now returns the currently selected server.
func (s *servers) now() server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[s.at]
}

// next selects the next server.
func (s *servers) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = (s.at + 1) % len(s.all)
}

// A worker whose lease has expired restarts with a new ID, but handlers that ignore their cancelled contexts keep running. These leftover
// handlers still use the machine's resources, so until they return, each of them takes up one of the slots that the worker offers to pods.

// errSlotFreed ends a stream, so that the next one offers more slots.
var errSlotFreed = errors.New("a handler from an earlier session returned: its slot is free")

// leftovers returns the number of handlers that were started before the worker's restart and are still running.
func (w *Worker) leftovers() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		if t.podID != w.id {
			n++
		}
	}
	return n
}

// waitForASlot blocks while leftover handlers occupy all slots, because pods reject a worker that offers none.
func (w *Worker) waitForASlot(ctx context.Context) error {
	for warned := false; w.leftovers() >= w.opts.Slots; warned = true {
		if !warned {
			w.log.WarnContext(ctx, "all slots are held by handlers that ignore their cancelled contexts", telemetry.Slots, w.opts.Slots)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.freed:
		}
	}
	return nil
}

// offerFreedSlot ends the stream after a leftover handler has returned, so that the next stream offers the freed slot to the pods.
func (w *Worker) offerFreedSlot() {
	w.freed.Set()
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut != nil {
		cut(errSlotFreed)
	}
}
