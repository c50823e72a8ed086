package engine

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// What the pod and the sessions of remote workers need of their engine to serve an identity.

// begin takes the first heartbeat of an identity that was registered, or is served here from now on.
func (e *Engine) Begin(sent time.Time, b store.Beat) {
	e.Lease.beaten(sent, b.Now, b.Left, true)
	e.told(b)
}

// live claims jobs until ctx ends, then calls drain. It renews the lease and writes ends until drain has returned.
func (e *Engine) Live(ctx context.Context, drain func(alive context.Context)) {
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var life sync.WaitGroup
	life.Go(func() { e.beat(alive) })
	life.Go(func() { e.compare(alive) })
	life.Go(func() { e.flusher.run(alive) })
	life.Go(func() { e.keepBalance(alive) })
	var claims sync.WaitGroup
	claims.Go(func() { e.Poller.Run(ctx) })
	<-ctx.Done()
	e.StopClaims()
	claims.Wait()
	life.Go(func() { e.returnSlots(alive) }) // those of limited lanes that it does not use: others wait for them
	drain(alive)
	die()
	life.Wait()
	e.workers.Close()
}

// writeEnds writes the ends of adopted claims, without a lease to keep and without claims, until stop is called.
func (e *Engine) WriteEnds() (stop func()) {
	alive, die := context.WithCancel(context.Background())
	var life sync.WaitGroup
	life.Go(func() { e.flusher.run(alive) })
	return func() {
		e.CloseRuns()
		die()
		life.Wait()
		e.workers.Close()
	}
}

// stopClaims keeps the engine from starting jobs.
func (e *Engine) StopClaims() { e.Closing.Store(true) }

// waitIdle blocks until no claim is left, and reports whether none is; or until ctx ends or over is closed.
func (e *Engine) WaitIdle(ctx context.Context, over <-chan struct{}) bool {
	for {
		select {
		case <-over:
			return false
		case <-e.Runs.idle():
			if e.Runs.Count() == 0 {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// closeRuns waits for the ends that are being written, and takes in no further claims.
func (e *Engine) CloseRuns() {
	e.Runs.Wait(2*time.Second, nil)
	e.Runs.Close()
}

// adopt goes on with a claim that the identity has held for a while already, and reports whether it takes it.
func (e *Engine) Adopt(a store.Adopted) bool {
	e.Lanes.Adopt(a.Lane)
	one := e.NewRun(a.Claimed, e.Boot())
	if one == nil {
		e.Lanes.Release(a.Lane, 1)
		return false
	}
	one.hasRun(a.Ran)
	if a.CancelRequested {
		e.cancelRun(one, job.ReasonCancelled)
	}
	e.workers.Give(one)
	return true
}

// unsure asks for the slots of limited lanes that the identity held before; with missed, also for claims whose replies were lost.
func (e *Engine) RestoreClaims(missed bool) {
	e.Lanes.Unsure()
	if missed {
		e.Doubt.Raise()
	}
}

// resize changes the number of slots.
func (e *Engine) Resize(slots int) {
	if e.Lanes.Resize(slots) {
		e.Wake()
	}
}

// cancelClaim ends the handler of a claim if it runs here.
func (e *Engine) CancelClaim(l job.Lease, why job.Reason) {
	if one := e.Runs.Find(l.JobID, l.Fence); one != nil && one.Lease.Pod == l.Pod {
		e.cancelRun(one, why)
	}
}

// cancelOverdue cancels the handler of a claim that was ended because its job is too old, if it runs here.
func (e *Engine) CancelOverdue(l job.Lease) { e.CancelClaim(l, job.ReasonDeadline) }

// wakeForPeers looks for jobs, and for slots of limited lanes that other engines may have changed.
func (e *Engine) WakeForPeers() {
	e.heard.Store(true)
	e.Wake()
}

// raiseDoubt looks for claims that the table gives to the identity and that the engine does not know.
func (e *Engine) NoteUnknownOutcome() {
	e.Doubt.Raise()
	e.Wake()
}

// loseLease gives the identity a new boot id, after others have closed its row, ends what it runs, and returns the old id.
func (e *Engine) LoseLease() (old string) {
	old = e.Lease.Renew()
	e.Lanes.DropGrants()
	e.Runs.Each(func(one *Run) {
		if one.Lease.Pod == old {
			one.lose(job.ErrLeaseLost)
		}
	})
	return old
}

// hasRun counts against a run's time for how long it ran elsewhere. Call it before the run is given to anybody.
func (one *Run) hasRun(before time.Duration) {
	if one.kind.Timeout <= 0 {
		return
	}
	timer, done := time.AfterFunc(one.kind.Timeout-before, func() { one.cancel(job.ErrTimeout) }), one.done
	one.done = func() { timer.Stop(); done() }
}
