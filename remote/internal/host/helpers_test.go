package host_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/remote/internal/host"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const owner = "gpu-team"

// far is a remote worker without a network. Assignments wait in a channel until the test handles them.
type far struct {
	id      string
	sent    chan engine.Assignment
	session *host.Session
	cut     context.CancelFunc // closes its stream

	nudges    chan struct{}
	ackWithin time.Duration
	sending   func() error // returns the error for a send after the job has arrived; if nil, sends return the error of the stream's context

	mu   sync.Mutex
	runs map[int64]engine.Assignment
}

// ackWithin is the time for which a job may be missing from the heartbeats.
const ackWithin = 500 * time.Millisecond

func newFar() *far {
	return &far{id: uuid.NewString(), runs: map[int64]engine.Assignment{}, nudges: make(chan struct{}, 100), ackWithin: ackWithin}
}

// connect opens the worker's stream to a pod.
func (w *far) connect(t *testing.T, to *runner.Runner, slots int, kinds ...string) {
	t.Helper()
	var list []engine.RemoteKind
	for _, kind := range kinds {
		list = append(list, engine.RemoteKind{Name: kind})
	}
	w.open(t, to, slots, list...)
}

// open opens the worker's stream to a pod with the given kinds and their options.
func (w *far) open(t *testing.T, to *runner.Runner, slots int, kinds ...engine.RemoteKind) {
	t.Helper()
	ctx, cut := context.WithCancel(context.Background())
	t.Cleanup(cut)
	w.cut, w.sent = cut, make(chan engine.Assignment, 100)
	sent, sending := w.sent, w.sending
	if sending == nil {
		sending = ctx.Err
	}
	o := host.Options{ID: w.id, Owner: owner, Kinds: kinds, Slots: slots, Running: w.claims(), AckWithin: w.ackWithin,
		Send: func(a engine.Assignment) error { sent <- a; return sending() }, Nudge: func() { w.nudges <- struct{}{} }}
	var err error
	if w.session, err = hostOf(to).Receive(ctx, o); err != nil {
		t.Fatal(err)
	}
}

func (w *far) claims() (list []host.Claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.runs {
		list = append(list, claimOf(a))
	}
	return list
}

func claimOf(a engine.Assignment) host.Claim {
	return host.Claim{ID: a.ID, Fence: a.Fence, Token: a.Token}
}

// served starts a pod that handles only kind local, and a worker that sends heartbeats and accepts jobs of kind far.
func served(t *testing.T, slots int, o runner.Options) (*runner.Runner, *far) {
	t.Helper()
	r, w := podtest.Start(t, pgtest.Pool(t), o, noKinds), newFar()
	w.connect(t, r, slots, "far")
	w.keepBeating(t, r)
	return r, w
}

// takes waits for an assignment and acknowledges it.
func (w *far) takes(t *testing.T, from *runner.Runner) engine.Assignment {
	t.Helper()
	select {
	case a := <-w.sent:
		w.mu.Lock()
		w.runs[a.ID] = a
		w.mu.Unlock()
		w.beats(t, from)
		return a
	case <-time.After(10 * time.Second):
		t.Fatal("no job was sent")
	}
	return engine.Assignment{}
}

func (w *far) beats(t *testing.T, to *runner.Runner) map[int64]host.Verdict {
	t.Helper()
	var b host.Beat
	for _, c := range w.claims() {
		b.Running = append(b.Running, host.Listed{Claim: c})
	}
	list, err := hostOf(to).Heartbeat(t.Context(), w.id, owner, b)
	if err != nil {
		t.Fatal(err)
	}
	said := map[int64]host.Verdict{}
	for _, v := range list {
		said[v.ID] = v
	}
	return said
}

func (w *far) reports(t *testing.T, to *runner.Runner, a engine.Assignment, o *runner.Outcome, failure error) (bool, error) {
	t.Helper()
	duplicate, err := hostOf(to).Report(t.Context(), w.id, owner, host.Report{Claim: claimOf(a), Outcome: encoded(o), Err: failure})
	if err == nil {
		w.mu.Lock()
		delete(w.runs, a.ID)
		w.mu.Unlock()
	}
	return duplicate, err
}

// keepBeating sends heartbeats until the test ends or stop is called.
func (w *far) keepBeating(t *testing.T, to *runner.Runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				var b host.Beat
				for _, c := range w.claims() {
					b.Running = append(b.Running, host.Listed{Claim: c})
				}
				_, _ = hostOf(to).Heartbeat(ctx, w.id, owner, b)
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); beating.Wait() })
	t.Cleanup(stop)
	return stop
}

// noKinds holds the handlers of a pod that runs none of the workers' kinds.
var noKinds = map[string]does{"local": podtest.Succeed}

func foreign(t *testing.T, r *runner.Runner, args job.Args, options ...runner.EnqueueOption) int64 {
	return podtest.Enqueue(t, r, args, append(options, runner.AllowUnregistered())...)
}
