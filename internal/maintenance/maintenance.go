// Package maintenance does the periodic tasks that the pods of a database share: retention, expiry, deadlines, reconciliation, partitions,
// vacuum. There is no leader that others depend on. The pod that holds an advisory lock does the tasks; the others do one that is overdue,
// and where no direct connection can be made, the first pod that comes does each. Every task may be done by two pods at once.
//
// It hides the lock, the rows that share tasks out, and the pace, which leaves half of a connection's time to others. Package pod runs one
// in each pod; tools and tests call [Maintenance.RunOnce].
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

// Options hold the needs of the maintenance. All fields but Session are required.
type Options struct {
	Store   *store.Store
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Pod     string // name

	// LeadEvery is the longest interval between two attempts to take, or to confirm, the lead.
	LeadEvery time.Duration
	// Session holds the lead. Nil: there is none.
	Session Session
	// Trusted reports whether this pod trusts its lease.
	Trusted func() bool

	// RetainSucceeded and its like are the times for which finished jobs and events are kept; below 0: for ever.
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	// ApprovalTTL is the time after which a job that awaits approval is cancelled; 0: never.
	ApprovalTTL time.Duration
	// MaxAge is the age at which a job fails with the reason deadline; 0: none.
	MaxAge time.Duration

	// Ended reports the ends of jobs.
	Ended func([]job.End)
	// Overdue ends the handler of a claim whose job is over its deadline, if it runs here.
	Overdue func(job.Lease)
	// FanOutsChanged is called after counts of fan-outs were corrected.
	FanOutsChanged func()
	// Wake has this pod claim jobs, WakePeers the others.
	Wake, WakePeers func()
	// Count counts an error of the database, and returns it.
	Count func(error) error
}

// Maintenance does a pod's share of the maintenance. Its methods are safe for concurrent use.
type Maintenance struct {
	o            Options
	lead         *leader
	stranded     wait.Signal
	reconciled   atomic.Int64 // the last waiting job whose children were counted
	mayNotVacuum atomic.Bool  // has been logged
	pruned       pruned
}

// New returns a maintenance that does nothing until it is run.
func New(o Options) *Maintenance {
	m := &Maintenance{o: o, stranded: wait.NewSignal()}
	m.lead = &leader{m: m}
	return m
}

// SessionEnded notes that Options.Session is about to end, and the lead with it. Call it before the session's lock is free: another pod
// reports at once that it leads.
func (m *Maintenance) SessionEnded() { m.lead.lost() }

// startAfter is the least delay before a pod's first run of its tasks; the longest is twice that. A pod that has just started has other
// things to do, and pods that start together need not all do them.
const startAfter = 2 * time.Second

// Run does this pod's share of the maintenance until ctx ends.
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

// RunOnce does every task once, now. It goes on after an error and returns the errors of all.
func (m *Maintenance) RunOnce(ctx context.Context) error {
	var errs []error
	for _, t := range m.tasks(func(ctx context.Context) error { return ctx.Err() }) {
		if _, err := t.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("maintain %s: %w", t.name, m.o.Count(err)))
		}
	}
	return errors.Join(errs...)
}
