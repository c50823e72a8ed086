package engine

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// FirstBeat applies the first heartbeat for an identity that has just been registered or taken over by this process.
func (e *Engine) FirstBeat(sent time.Time, b store.Beat) {
	e.apply(b) // the lanes come before the lease, so that jobs submitted to a ready engine can start here
	e.Lease.Renewed(sent, b.Now, b.Left, true)
}

// Live claims jobs until ctx ends, and then calls drain. It renews the lease and writes outcomes until drain returns.
func (e *Engine) Live(ctx context.Context, drain func(alive context.Context)) {
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	var life sync.WaitGroup
	for _, run := range []func(context.Context){e.beat, e.compare, e.answerRequests, e.AdmitUntil, e.flusher.run, e.groups.run, e.settleUntil, e.expireAhead} {
		life.Go(func() { run(alive) })
	}
	var claims sync.WaitGroup
	claims.Go(func() { e.Poller.Run(ctx) })
	<-ctx.Done()
	e.StopClaims()
	claims.Wait()
	e.returnAhead(alive, e.Ahead.Remove(func(*slots.Claim) bool { return true }))
	life.Go(func() { e.ReturnSlots(alive) }) // other pods may be waiting for unused slots of limited lanes
	drain(alive)
	die()
	life.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = e.Admit(last) // the subjects of the last outcomes
	e.workers.Close()
}

// WriteEnds writes the outcomes of adopted claims until stop is called, without renewing the lease or claiming jobs.
func (e *Engine) WriteEnds() (stop func()) {
	alive, die := context.WithCancel(context.Background())
	var life sync.WaitGroup
	for _, run := range []func(context.Context){e.flusher.run, e.groups.run, e.AdmitUntil} {
		life.Go(func() { run(alive) })
	}
	return func() {
		e.CloseRuns()
		die()
		life.Wait()
		ending, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = e.Admit(ending) // the subjects of the last outcomes
		e.workers.Close()
	}
}

// Adopt continues a claim that the identity already holds. It reports false if the engine has stopped.
func (e *Engine) Adopt(a store.Adopted) bool {
	e.Lanes.Adopt(a.Lane)
	run := e.NewRun(&a.Claimed, e.PodID())
	if run == nil {
		e.Lanes.Release(a.Lane, 1)
		return false
	}
	run.hasRun(a.Ran)
	if a.CancelRequested {
		run.cancelFor(job.ReasonCancelled)
	}
	e.workers.Give(run)
	return true
}

func (e *Engine) Resize(slots int) {
	if e.Lanes.Resize(slots) {
		e.Wake()
	}
}

// NoteUnknownOutcome requests a search for claims that the table assigns to the identity without the engine knowing about them.
func (e *Engine) NoteUnknownOutcome() {
	e.Unknown.Raise()
	e.Wake()
}

// LoseLease gives the identity a new pod id after another pod has closed its row. It cancels the old id's runs and returns the old id.
func (e *Engine) LoseLease() (old string) {
	old = e.Lease.NewBoot()
	e.Lanes.DropGrants()
	e.Ahead.Done(e.Ahead.Remove(func(c *slots.Claim) bool { return c.Lease.Pod == old })...)
	e.Runs.Each(func(run *Run) {
		if run.Lease.Pod == old {
			run.lose(job.ErrLeaseLost)
		}
	})
	return old
}

// Drain waits for the handlers, cancels the contexts of those that are still running after the grace period, and finally hands back any
// remaining claims.
func (e *Engine) Drain(ctx context.Context) {
	if !e.Runs.WaitEmpty(e.Opts.ShutdownGrace, e.hurry) {
		e.Runs.Each(func(run *Run) { run.cancel(job.ErrShutdown) })
		// An unresponsive database must not delay the shutdown. The lease will expire regardless.
		giveUp := time.AfterFunc(2*time.Second, e.flusher.die)
		defer giveUp.Stop()
		if !e.Runs.WaitEmpty(time.Second, nil) {
			e.handBackRest(ctx)
		}
	}
	e.Runs.Shut()
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := e.HandBackOrphans(asking); err != nil {
		e.Log.WarnContext(ctx, "could not hand back jobs unknown to this pod: leaving them to other pods", telemetry.Err, e.DBError(err))
	}
}

// handBackRest hands back the claims of handlers that ignore their cancelled contexts, and of next steps that started after the
// cancellation.
func (e *Engine) handBackRest(ctx context.Context) {
	e.Runs.Each(func(run *Run) {
		run.cancel(job.ErrShutdown)
		if run.Settled.CompareAndSwap(false, true) {
			e.Metrics.Stuck.Inc()
			e.Log.WarnContext(ctx, "handler ignores the shutdown: handing back its job", run.attrs()...)
			e.handBack(run, "the pod is shutting down")
		}
	})
}

// HurryDrain cuts short a drain's grace period.
func (e *Engine) HurryDrain() { e.hurried.Do(func() { close(e.hurry) }) }
