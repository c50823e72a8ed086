// Package maintenance runs the periodic tasks that all pods of a database share: retention, expiry, deadlines, reconciliation, partitions
// and vacuum. The pod that holds an advisory lock runs the tasks, but no pod depends on this leader, because the others run tasks that are
// overdue. Without direct connections, each task is run by the first pod to ask for it. Two pods may run the same task concurrently.
//
// The package encapsulates the lock, the rows that distribute the tasks, and the pauses between batches. Package pod runs a Maintenance in
// each pod. Tools and tests call [Maintenance.RunOnce].
package maintenance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// Options configures a [Maintenance]. All fields except Session are required.
type Options struct {
	Store   *store.Store
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Pod     string // display name

	// LeadEvery is the maximum interval between two checks of whether this pod is or can become the leader.
	LeadEvery time.Duration
	// Session is the session that holds the leader lock. It can be nil.
	Session Session
	// Trusted reports whether this pod trusts its lease.
	Trusted func() bool

	// RetainSucceeded and the fields after it set how long finished jobs and events are kept. Negative means forever.
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	// ApprovalTTL is the maximum time that a job may await approval before it is cancelled. 0 means no limit.
	ApprovalTTL time.Duration
	// MaxAge is the age at which a job fails with the reason deadline. 0 means no limit.
	MaxAge time.Duration

	// Ended is called with jobs that a task has ended.
	Ended func([]job.End)
	// LinesChanged is called after a task has freed a subject's guard, or has ended a job that was in lines.
	LinesChanged func(...store.Line)
	// Overdue cancels a claim's handler, if it is running on this pod, because the job has passed its deadline.
	Overdue func(job.Lease)
	// FanOutsChanged is called after fan-out counts have been corrected.
	FanOutsChanged func()
	// Wake makes this pod claim jobs. WakePeers makes the other pods claim jobs.
	Wake, WakePeers func()
	// Count counts a database error and returns it.
	Count func(error) error
}

// Maintenance runs a pod's share of the maintenance tasks. It is safe for concurrent use.
type Maintenance struct {
	o            Options
	lead         *leader
	stranded     routine.Signal
	reconciled   atomic.Int64 // ID of the waiting job whose children were counted last
	mayNotVacuum atomic.Bool  // the missing privilege has been logged
	pruned       pruned
}

// New returns a Maintenance. It does nothing until Run or RunOnce is called.
func New(o Options) *Maintenance {
	m := &Maintenance{o: o, stranded: routine.NewSignal()}
	m.lead = &leader{m: m}
	return m
}

// SessionEnded records that this pod is no longer the leader, because Options.Session is about to close. Call it before the session
// releases its lock, since another pod can become the leader as soon as the lock is free.
func (m *Maintenance) SessionEnded() { m.lead.drop() }

// startAfter is the minimum delay before a pod first runs its tasks, and half the maximum delay. A pod that has just started has more
// urgent work, and pods that start together should not all run the tasks.
const startAfter = 2 * time.Second

// Run runs this pod's share of the maintenance tasks until ctx is cancelled.
func (m *Maintenance) Run(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { m.keepStranded(ctx) })
	if !routine.Sleep(ctx, startAfter+rand.N(startAfter)) { // #nosec G404 -- jitter
		return
	}
	clock, err := scheduler.New(m.o.Log)
	if err != nil {
		m.o.Log.ErrorContext(ctx, "maintenance is not running", telemetry.Err, err)
		return
	}
	m.lead.check(ctx)
	others.Go(func() { m.lead.keep(ctx) })
	for i := range m.tasks(nil) {
		r := &run{m: m, lead: m.lead}
		r.task = m.tasks(r.pace)[i]
		if err := clock.Every(r.name, r.every, r.start); err != nil {
			m.o.Log.ErrorContext(ctx, "maintenance incomplete", telemetry.Task, r.name, telemetry.Err, err)
		}
	}
	clock.Run(ctx)
}

// RunOnce runs every task once. It continues after an error and returns all errors.
func (m *Maintenance) RunOnce(ctx context.Context) error {
	var errs []error
	for _, t := range m.tasks(func(ctx context.Context) error { return ctx.Err() }) {
		if _, err := t.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("maintain %s: %w", t.name, m.o.Count(err)))
		}
	}
	return errors.Join(errs...)
}
