// Package maintenance runs the periodic tasks that the pods of a database share: retention, expiry, deadlines, reconciliation, partitions,
// vacuum. No pod depends on a leader. The pod that holds an advisory lock runs the tasks, and the others run overdue ones. If no direct
// connection is possible, the first pod to come runs each task. Two pods may run the same task at once.
//
// It hides the lock, the rows that distribute the tasks, and the pace, which leaves half of a connection's time to others. Package pod
// runs one in each pod. Tools and tests call [Maintenance.RunOnce].
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

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// Options configure a [Maintenance]. All fields but Session are required.
type Options struct {
	Store   *store.Store
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Pod     string // display name

	// LeadEvery is the longest interval between two attempts to take, or to confirm, the lead.
	LeadEvery time.Duration
	// Session holds the lock of the lead. Nil: none.
	Session Session
	// Trusted reports whether this pod trusts its lease.
	Trusted func() bool

	// RetainSucceeded and the others are how long ended jobs and events are kept; below 0: for ever.
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	// ApprovalTTL is the time after which a job that awaits approval is cancelled; 0: never.
	ApprovalTTL time.Duration
	// MaxAge is the age at which a job fails with the reason deadline; 0: none.
	MaxAge time.Duration

	// Ended reports the ends of jobs.
	Ended func([]job.End)
	// Overdue ends the handler of a claim whose job has passed its deadline, if it runs here.
	Overdue func(job.Lease)
	// FanOutsChanged is called after counts of fan-outs were corrected.
	FanOutsChanged func()
	// Wake makes this pod claim jobs, WakePeers the other pods.
	Wake, WakePeers func()
	// Count counts an error of the database, and returns it.
	Count func(error) error
}

// Maintenance runs a pod's share of the maintenance. Its methods are safe for concurrent use.
type Maintenance struct {
	o            Options
	lead         *leader
	stranded     wait.Signal
	reconciled   atomic.Int64 // the last waiting job whose children were counted
	mayNotVacuum atomic.Bool  // the missing privilege has been logged
	pruned       pruned
}

// New returns a maintenance that does nothing until Run or RunOnce is called.
func New(o Options) *Maintenance {
	m := &Maintenance{o: o, stranded: wait.NewSignal()}
	m.lead = &leader{m: m}
	return m
}

// SessionEnded records that Options.Session is about to end, and the lead with it. Call it before the session's lock is released, because
// another pod then reports at once that it leads.
func (m *Maintenance) SessionEnded() { m.lead.dropLocked() }

// startAfter is the shortest delay before a pod's first run of its tasks; the longest is twice that. A pod that has just started has more
// urgent work, and pods that start together should not all run the tasks.
const startAfter = 2 * time.Second

// Run runs this pod's share of the maintenance until ctx ends.
func (m *Maintenance) Run(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { m.keepStranded(ctx) })
	if !wait.For(ctx, startAfter+rand.N(startAfter)) { // #nosec G404 -- jitter
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

// RunOnce runs every task once, now. It continues after an error and returns the errors of all.
func (m *Maintenance) RunOnce(ctx context.Context) error {
	var errs []error
	for _, t := range m.tasks(func(ctx context.Context) error { return ctx.Err() }) {
		if _, err := t.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("maintain %s: %w", t.name, m.o.Count(err)))
		}
	}
	return errors.Join(errs...)
}
