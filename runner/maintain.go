package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// partitionsAhead is how many days of partitions exist before they are needed.
const partitionsAhead = 7

// maintenanceLock is the advisory lock of whoever does the maintenance. It is a hint that saves work: every step is safe
// when two pods do it.
const maintenanceLock = 420021

// maintainAfter is when a pod does its first round, at the earliest; at the latest after twice as long. A pod that has just
// started has other things to do, and pods that start together need not all do it.
const maintainAfter = 2 * time.Second

// keepPods and keepSubmissions are for how long closed pods and idempotency keys are remembered.
const (
	keepPods        = 168 * time.Hour
	keepSubmissions = 24 * time.Hour
)

// maintain does this pod's share of the maintenance until ctx ends.
func (r *Runner) maintain(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(maintainAfter + rand.N(maintainAfter)): // #nosec G404 -- jitter
	}
	lead := &leader{r: r}
	defer lead.resign()
	guarded := func(name string, all bool, do func(ctx context.Context) (int, error)) func(context.Context) {
		return func(ctx context.Context) {
			if !all && !lead.leads(ctx) {
				return
			}
			n, err := do(ctx)
			if err != nil && ctx.Err() == nil {
				r.log.WarnContext(ctx, "maintenance failed, next round tries again", telemetry.Chore, name, telemetry.Err, r.dbError(err))
			} else if n > 0 {
				r.log.InfoContext(ctx, "maintenance done", telemetry.Chore, name, telemetry.Count, n)
			}
		}
	}
	clock, err := scheduler.New(r.log)
	if err != nil {
		r.log.ErrorContext(ctx, "maintenance does not run", telemetry.Err, err)
		return
	}
	for _, c := range r.chores() {
		if err := clock.Every(c.name, c.every, guarded(c.name, c.all, c.do)); err != nil {
			r.log.ErrorContext(ctx, "maintenance is not complete", telemetry.Chore, c.name, telemetry.Err, err)
		}
	}
	clock.Run(ctx)
}

// A chore is one part of the maintenance.
type chore struct {
	name  string
	every time.Duration
	all   bool // every pod does it: nobody can do without, and a leader may be frozen
	do    func(ctx context.Context) (int, error)
}

func (r *Runner) chores() []chore {
	return []chore{
		{"partitions", time.Hour, true, func(ctx context.Context) (int, error) { return r.front.EnsurePartitions(ctx, partitionsAhead) }},
		{"retention", 10 * time.Minute, false, r.forget},
		{"approval", time.Minute, false, r.expire},
		{"deadline", time.Minute, false, r.endOverdue},
		{"pods", time.Minute, false, func(ctx context.Context) (int, error) { return r.front.PrunePods(ctx, keepPods) }},
		{"stranded", time.Minute, false, r.moveStranded},
		{"reconcile", time.Minute, false, r.reconcile},
		{"pipelines", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.front.PrunePipelines(ctx, time.Hour) }},
		{"fires", 10 * time.Minute, false, r.pruneFires},
		{"submissions", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.front.PruneSubmissions(ctx, keepSubmissions) }},
	}
}

// Maintain does one round of the maintenance now: what a runner that is run does by itself, by the minute. It is for tools and
// tests that must not wait for that. It does what it can and returns the errors of the rest. Safe for concurrent use.
func (r *Runner) Maintain(ctx context.Context) error {
	var errs []error
	for _, c := range r.chores() {
		if _, err := c.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("maintain %s: %w", c.name, r.dbError(err)))
		}
	}
	return errors.Join(errs...)
}

// choresAtOnce is how many jobs one statement of a chore ends.
const choresAtOnce = 500

// expire cancels what nobody has approved in time.
func (r *Runner) expire(ctx context.Context) (total int, err error) {
	if r.opts.ApprovalTTL < 0 {
		return 0, nil
	}
	for {
		n, err := r.front.Expire(ctx, r.opts.ApprovalTTL, choresAtOnce)
		total += n
		if err != nil || n < choresAtOnce {
			return total, err
		}
	}
}

// endOverdue fails what is too old, and tells the handlers of this pod; those of others learn it by their heartbeat.
func (r *Runner) endOverdue(ctx context.Context) (total int, err error) {
	for {
		list, err := r.front.EndOverdue(ctx, r.opts.MaxAge, choresAtOnce)
		if err != nil {
			return total, err
		}
		ended := 0
		for _, o := range list {
			if o.Ended {
				ended++
			}
			if one := r.runs.find(o.ID, o.Fence); one != nil && o.Pod != nil && one.lease.Pod == *o.Pod {
				r.cancelRun(one, job.ReasonDeadline)
			}
		}
		if total += ended; ended > 0 {
			r.wake() // what waited for their subjects
			r.wakePeers()
		}
		if ended == 0 || len(list) < choresAtOnce {
			return total, nil
		}
	}
}

// forget removes what has outlived its retention.
func (r *Runner) forget(ctx context.Context) (int, error) {
	total := 0
	for state, keep := range map[string]time.Duration{
		"succeeded": r.opts.RetainSucceeded, "failed": r.opts.RetainFailed, "cancelled": r.opts.RetainCancelled,
	} {
		if keep < 0 {
			continue
		}
		n, err := r.front.Forget(ctx, state, time.Now().Add(-keep))
		total += n
		if err != nil {
			return total, err
		}
	}
	if r.opts.RetainEvents >= 0 {
		if _, err := r.front.ForgetEvents(ctx, time.Now().Add(-r.opts.RetainEvents)); err != nil {
			return total, err
		}
	}
	return total, nil
}

// leader holds the maintenance lock on a connection of its own, and asks before each action whether it still does.
type leader struct {
	r    *Runner
	mu   sync.Mutex
	conn *pgx.Conn
	held bool
}

// leads reports whether this pod does the maintenance now. Without a direct connection every pod does.
func (l *leader) leads(ctx context.Context) bool {
	if l.r.deaf() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if l.conn != nil && l.conn.Ping(ctx) != nil {
		l.drop()
	}
	if l.conn == nil {
		conn, err := l.r.direct(ctx)
		if err != nil {
			return false
		}
		l.conn = conn
	}
	if !l.held {
		// Once a connection: a second one would stack.
		if err := l.conn.QueryRow(ctx, `select pg_try_advisory_lock($1)`, maintenanceLock).Scan(&l.held); err != nil {
			l.drop()
			return false
		}
	}
	if l.held {
		l.r.metrics.Leader.Set(1)
	}
	return l.held
}

func (l *leader) drop() {
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.conn.Close(closing)
	l.conn, l.held = nil, false
	l.r.metrics.Leader.Set(0)
}

func (l *leader) resign() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.drop()
	}
}
