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

// sessionPollEvery is the interval at which a session polls for jobs without a wake-up.
const sessionPollEvery = 500 * time.Millisecond

// Session is a remote worker whose stream this pod serves. It has its own engine, row, lanes and runs, and uses the pod's store,
// connections, metrics and log. Its handlers are proxies: each sends its job on the stream and waits for the report. A job that runs
// elsewhere is therefore claimed, fenced, handed over, retried and ended as any other.
//
// Its lease is renewed only while the worker sends heartbeats. It outlives its stream: the worker may reconnect, to this pod or to
// another one, with its running jobs. The session of the latest stream decides; pods.stream holds its number.
type Session struct {
	engine   *engine.Engine // not shared with the pod
	host     *Host
	opts     Options
	stream   int64
	key      []byte
	heard    atomic.Bool     // a heartbeat has arrived since the last renewal
	claims   <-chan struct{} // closed when the worker gets no more jobs
	over     chan struct{}   // closed when the session has ended
	why      error           // set before over is closed
	end      sync.Once
	gone     chan struct{}      // closed when all its goroutines have ended
	stop     context.CancelFunc // of claims
	mu       sync.Mutex
	proxies  map[engine.ClaimKey]*proxy
	reported recent // claims that have ended by a report on this pod
}

// Claim is a claim as a remote worker identifies it.
type Claim struct {
	ID, Fence int64
	Token     []byte // the token of its assignment
}

// Errors of calls of remote workers.
var (
	// ErrClosed means that the worker's lease expired, or that its id belongs to another principal: it starts again with a new id.
	ErrClosed = errors.New("the worker's row is closed")
	// ErrSuperseded means that the worker has opened a newer stream.
	ErrSuperseded = errors.New("the worker opened another stream")
	// ErrWrongToken means that a call about a job has a token that does not match its assignment.
	ErrWrongToken = job.ErrWrongToken
)

// errLeft is the cause of a session whose worker has left, or has lost its stream while it ran nothing.
var errLeft = errors.New("it left, or lost its stream without running jobs")

// live serves the worker until the session ends. It claims as long as the stream (claiming) is open, and then waits for the running
// jobs.
func (g *Session) live(claiming context.Context) {
	defer g.host.remove(g)
	defer close(g.gone)
	g.engine.Wake()
	g.engine.Live(claiming, func(alive context.Context) {
		g.giveBackUnsent()
		if g.engine.WaitIdle(alive, g.over) {
			g.finish(nil)
		}
		g.engine.CloseRuns()
	})
	g.host.pod.Log.InfoContext(claiming, "remote worker gone", telemetry.Pod, g.opts.Name, telemetry.Boot, g.opts.ID, telemetry.Why, cmp.Or(g.why, errLeft))
}

// finish ends the session without ending the jobs that its worker runs.
func (g *Session) finish(why error) {
	g.end.Do(func() {
		g.why = why
		close(g.over)
		g.stop()
	})
}

// Stopped returns a channel that is closed when the worker gets no more jobs: its stream has to end.
func (g *Session) Stopped() <-chan struct{} { return g.claims }

// Over returns a channel that is closed when the session has ended. After that, [Session.Why] returns the reason.
func (g *Session) Over() <-chan struct{} { return g.over }

// Why returns why the session has ended: nil if its worker left and ran nothing.
func (g *Session) Why() error { return g.why }
