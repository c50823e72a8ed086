package runner

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// What the pod and the sessions of remote workers need of their engine to serve an identity.

// begin takes the first heartbeat of an identity that was registered, or is served here from now on.
func (e *engine) begin(sent time.Time, b store.Beat) {
	e.lease.beaten(sent, b.Now, b.Left, true)
	e.told(b)
}

// live claims jobs until ctx ends, then calls drain. It renews the lease and writes ends until drain has returned.
func (e *engine) live(ctx context.Context, drain func(alive context.Context)) {
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var life sync.WaitGroup
	life.Go(func() { e.beat(alive) })
	life.Go(func() { e.compare(alive) })
	life.Go(func() { e.flusher.run(alive) })
	life.Go(func() { e.keepBalance(alive) })
	var claims sync.WaitGroup
	claims.Go(func() { e.poller.Run(ctx) })
	<-ctx.Done()
	e.stopClaims()
	claims.Wait()
	life.Go(func() { e.returnSlots(alive) }) // those of limited lanes that it does not use: others wait for them
	drain(alive)
	die()
	life.Wait()
	e.hands.close()
}

// writeEnds writes the ends of adopted claims, without a lease to keep and without claims, until stop is called.
func (e *engine) writeEnds() (stop func()) {
	alive, die := context.WithCancel(context.Background())
	var life sync.WaitGroup
	life.Go(func() { e.flusher.run(alive) })
	return func() {
		e.closeRuns()
		die()
		life.Wait()
		e.hands.close()
	}
}

// stopClaims keeps the engine from starting jobs.
func (e *engine) stopClaims() { e.closing.Store(true) }

// waitIdle blocks until no claim is left, and reports whether none is; or until ctx ends or over is closed.
func (e *engine) waitIdle(ctx context.Context, over <-chan struct{}) bool {
	for {
		select {
		case <-over:
			return false
		case <-e.runs.idle():
			if e.runs.count() == 0 {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// closeRuns waits for the ends that are being written, and takes in no further claims.
func (e *engine) closeRuns() {
	e.runs.wait(2*time.Second, nil)
	e.runs.close()
}

// adopt goes on with a claim that the identity has held for a while already, and reports whether it takes it.
func (e *engine) adopt(a store.Adopted) bool {
	e.lanes.Adopt(a.Lane)
	one := e.newRun(a.Claimed, e.boot())
	if one == nil {
		e.lanes.Release(a.Lane, 1)
		return false
	}
	one.hasRun(a.Ran)
	if a.CancelRequested {
		e.cancelRun(one, job.ReasonCancelled)
	}
	e.hands.give(one)
	return true
}

// unsure asks for the slots of limited lanes that the identity held before; with missed, also for claims whose replies were lost.
func (e *engine) unsure(missed bool) {
	e.lanes.Unsure()
	if missed {
		e.doubt.raise()
	}
}

// resize changes the number of slots.
func (e *engine) resize(slots int) {
	if e.lanes.Resize(slots) {
		e.wake()
	}
}

// cancelClaim ends the handler of a claim if it runs here.
func (e *engine) cancelClaim(l job.Lease, why job.Reason) {
	if one := e.runs.find(l.JobID, l.Fence); one != nil && one.Lease.Pod == l.Pod {
		e.cancelRun(one, why)
	}
}

// cancelOverdue cancels the handler of a claim that was ended because its job is too old, if it runs here.
func (e *engine) cancelOverdue(l job.Lease) { e.cancelClaim(l, job.ReasonDeadline) }

// wakeForPeers looks for jobs, and for slots of limited lanes that other engines may have changed.
func (e *engine) wakeForPeers() {
	e.heard.Store(true)
	e.wake()
}

// raiseDoubt looks for claims that the table gives to the identity and that the engine does not know.
func (e *engine) raiseDoubt() {
	e.doubt.raise()
	e.wake()
}

// loseLease gives the identity a new boot id, after others have closed its row, ends what it runs, and returns the old id.
func (e *engine) loseLease() (old string) {
	old = e.lease.renew()
	e.lanes.DropGrants()
	e.runs.each(func(one *run) {
		if one.Lease.Pod == old {
			one.lose(job.ErrLeaseLost)
		}
	})
	return old
}

// hasRun counts against a run's time for how long it ran elsewhere. Call it before the run is given to anybody.
func (one *run) hasRun(before time.Duration) {
	if one.kind.timeout <= 0 {
		return
	}
	timer, done := time.AfterFunc(one.kind.timeout-before, func() { one.cancel(job.ErrTimeout) }), one.done
	one.done = func() { timer.Stop(); done() }
}
