package host

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// sessionPollEvery is how often a session polls for jobs when nothing wakes it.
const sessionPollEvery = 500 * time.Millisecond

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
