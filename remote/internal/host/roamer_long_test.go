//go:build long

package host_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

// roamer is a remote worker that follows the protocol on an unreliable network. Its streams break or stall, assignments get lost, and each
// call reaches a random pod.
type roamer struct {
	c      *chaos
	frozen sync.RWMutex // held while the process is frozen
	kick   chan struct{}
	work   sync.WaitGroup

	mu       sync.Mutex
	id       string
	received bool // a pod has accepted the worker under this ID
	stream   int  // the number of the latest stream
	tasks    map[[2]int64]*task
}

type task struct {
	podID string
	a     engine.Assignment
	ctx   context.Context // cancelled when the worker loses the job or must stop it
	end   context.CancelCauseFunc
	lost  atomic.Bool
}

func newRoamer(c *chaos) *roamer {
	return &roamer{c: c, kick: make(chan struct{}, 1), id: uuid.NewString(), tasks: map[[2]int64]*task{}}
}

// live runs jobs until ctx is cancelled, waits for running jobs, and then leaves.
func (w *roamer) live(ctx context.Context) {
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	var beating sync.WaitGroup
	beating.Go(func() { w.beat(alive) })
	for ctx.Err() == nil {
		w.open(ctx)
	}
	w.work.Wait()
	die()
	beating.Wait()
	for range 50 {
		if _, err := hostOf(w.c.pod()).Heartbeat(context.WithoutCancel(ctx), w.name(), owner, host.Beat{Draining: true, Leaving: true}); err == nil || errors.Is(err, host.ErrClosed) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *roamer) name() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id
}

// open opens a stream to a random pod and keeps it open for a while.
func (w *roamer) open(ctx context.Context) {
	w.frozen.RLock()
	streaming, cut := context.WithCancel(context.WithoutCancel(ctx))
	w.mu.Lock()
	w.stream++
	n, id := w.stream, w.id
	o := host.Options{ID: id, Owner: owner, Kinds: w.c.kinds, Slots: 3, AckWithin: 300 * time.Millisecond}
	for _, t := range w.tasks {
		if t.podID == id {
			o.Running = append(o.Running, claimOf(t.a))
		}
	}
	w.mu.Unlock()
	o.Send = func(a engine.Assignment) error {
		if w.c.odds(20) {
			return errors.New("cannot be sent")
		}
		if !w.c.odds(15) {
			w.take(n, id, a)
		}
		return streaming.Err()
	}
	g, err := hostOf(w.c.pod()).Receive(streaming, o)
	w.frozen.RUnlock()
	if errors.Is(err, host.ErrClosed) {
		w.anew(id)
	}
	if err != nil {
		cut()
		time.Sleep(20 * time.Millisecond)
		return
	}
	w.mu.Lock()
	w.received = w.received || w.id == id
	w.mu.Unlock()
	select {
	case <-g.Over():
		if errors.Is(g.Why(), host.ErrClosed) {
			w.anew(id)
		}
	case <-g.Stopped():
	case <-w.c.while(time.Duration(50+w.c.roll(700)) * time.Millisecond):
	case <-ctx.Done():
	}
	if w.c.odds(3) { // the pod does not notice the end of the stream immediately
		w.work.Go(func() { time.Sleep(300 * time.Millisecond); cut() })
		return
	}
	cut()
}

// take starts a job that arrived on a stream, unless the worker has left that stream.
func (w *roamer) take(n int, id string, a engine.Assignment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n != w.stream || id != w.id {
		return
	}
	t := &task{podID: id, a: a}
	t.ctx, t.end = context.WithCancelCause(context.Background())
	w.tasks[[2]int64{a.ID, a.Fence}] = t
	w.work.Go(func() { w.run(t) })
	w.hurry()
}

func (w *roamer) hurry() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// anew restarts the worker with a new ID.
func (w *roamer) anew(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.id != id {
		return
	}
	w.id, w.received = uuid.NewString(), false
	for _, t := range w.tasks {
		t.lose()
	}
}

func (t *task) lose() {
	t.lost.Store(true)
	t.end(job.ErrLeaseLost)
}

// run performs a job and repeats the report until a pod replies.
func (w *roamer) run(t *task) {
	defer func() {
		w.mu.Lock()
		delete(w.tasks, [2]int64{t.a.ID, t.a.Fence})
		w.mu.Unlock()
		w.hurry()
	}()
	select {
	case <-time.After(w.c.takes()):
	case <-t.ctx.Done():
	}
	report := w.c.outcome(t)
	for again, another := false, false; !t.lost.Load() || again; {
		w.frozen.RLock()
		asking, cancel := context.WithTimeout(context.Background(), time.Second)
		duplicate, err := hostOf(w.c.pod()).Report(asking, t.podID, owner, report)
		cancel()
		w.frozen.RUnlock()
		switch {
		case again && another:
			w.c.check(err != nil || !w.c.succeeded(t.a.ID), "job %d: another result than what was accepted: %v", t.a.ID, duplicate)
			return
		case again && err == nil:
			return
		case err == nil:
			w.c.accepted(t.a, report, duplicate)
			if again = w.c.odds(8) && report.Err == nil && !report.HandedBack; !again {
				return
			}
			if another = w.c.odds(2); another { // otherwise, the test repeats the same report, as if the reply had been lost
				report.Outcome = encoded(runner.Done("another"))
			}
		case errors.Is(err, job.ErrLeaseLost), errors.Is(err, host.ErrClosed):
			return
		default:
			w.c.check(!errors.Is(err, host.ErrWrongToken), "job %d: %v", t.a.ID, err)
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// beat sends heartbeats to random pods.
func (w *roamer) beat(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		case <-time.After(100 * time.Millisecond):
		}
		w.frozen.RLock()
		w.beatOnce()
		w.frozen.RUnlock()
	}
}

func (w *roamer) beatOnce() {
	var b host.Beat
	w.mu.Lock()
	id := w.id
	for _, t := range w.tasks {
		if t.podID == id {
			b.Running = append(b.Running, host.Listed{Claim: claimOf(t.a)})
		}
	}
	w.mu.Unlock()
	asking, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	said, err := hostOf(w.c.pod()).Heartbeat(asking, id, owner, b)
	w.mu.Lock()
	closed := errors.Is(err, host.ErrClosed) && w.received && w.id == id
	defer w.mu.Unlock()
	if closed {
		go w.anew(id)
		return
	}
	for _, v := range said {
		switch t := w.tasks[[2]int64{v.ID, v.Fence}]; {
		case t == nil:
		case v.Lost:
			t.lose()
		case v.Cause != nil:
			t.end(v.Cause)
		}
	}
}
