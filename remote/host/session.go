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

// sessionPollEvery is how often it is looked for jobs for a remote worker without any other cause.
const sessionPollEvery = 500 * time.Millisecond

// Session is a remote worker as the pod serves it that its stream has reached: an engine of its own inside the pod's, with the pod's
// store, connections, metrics and log, and with a row, lanes and runs of its own. Its handlers are proxies: each has its job sent
// on the stream and waits for the report. So a job that runs elsewhere is claimed, fenced, handed over, retried and ended as any
// other.
//
// Its lease is renewed only while the worker is heard of. It outlives its stream: the worker may come back, to this pod or to
// another one, with what it runs. Whoever opened the latest stream is the one that decides; pods.stream says who.
type Session struct {
	engine   *engine.Engine // its own
	host     *Host
	opts     Options
	stream   int64
	key      []byte
	heard    atomic.Bool     // of, since the latest beat
	claims   <-chan struct{} // closed when it is given nothing more
	over     chan struct{}   // closed when the session has ended
	why      error           // set before over is closed
	end      sync.Once
	gone     chan struct{}      // closed when nothing of it goes on
	stop     context.CancelFunc // of claims
	mu       sync.Mutex
	proxies  map[engine.ClaimKey]*proxy
	reported recent // claims that have ended by a report that came here
}

// Claim is a claim as a remote worker names it.
type Claim struct {
	ID, Fence int64
	Token     []byte // that came with its assignment
}

// Errors of what concerns remote workers.
var (
	// ErrClosed says that the worker's lease ran out, or that its id is somebody else's: it begins anew with another id.
	ErrClosed = errors.New("the worker's row is closed")
	// ErrSuperseded says that the worker has opened a newer stream.
	ErrSuperseded = errors.New("the worker opened another stream")
	// ErrWrongToken says that something was said of a job with a token that is not of its assignment.
	ErrWrongToken = job.ErrWrongToken
)

// errLeft is why a session is gone whose worker has left, or has lost its stream and ran nothing.
var errLeft = errors.New("it left, or lost its stream without running jobs")

// live serves the worker until the session ends: claims as long as the stream does (claiming), and after that what it still runs.
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

// finish ends the session: what its worker runs is left as it is.
func (g *Session) finish(why error) {
	g.end.Do(func() {
		g.why = why
		close(g.over)
		g.stop()
	})
}

// Stopped is closed when the worker is sent nothing more: its stream is to end.
func (g *Session) Stopped() <-chan struct{} { return g.claims }

// Over is closed when the session has ended: after it, [Session.Why] tells why.
func (g *Session) Over() <-chan struct{} { return g.over }

// Why is why the session has ended: nil when its worker left and ran nothing.
func (g *Session) Why() error { return g.why }
