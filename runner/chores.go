package runner

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// partitionsAhead is how many days of partitions exist before they are needed.
	partitionsAhead = 7
	// keepPods, keepSubmissions and keepPipelines are for how long closed pods, idempotency keys and pipelines without a job are
	// remembered.
	keepPods        = 168 * time.Hour
	keepSubmissions = 24 * time.Hour
	keepPipelines   = time.Hour
	// choresAtOnce is how many jobs one statement of a chore ends, prunesAtOnce how many rows of other kinds it removes.
	choresAtOnce = 500
	prunesAtOnce = 2000
)

// A chore is one part of the maintenance. Each may be ended between two batches and done by two pods at once.
type chore struct {
	name  string
	every time.Duration
	all   bool // every pod does it: nobody can do without, and a leader may be frozen
	do    func(ctx context.Context) (int, error)
}

// chores are all parts of the maintenance. Those that work in batches ask goOn before each.
func (r *Runner) chores(goOn store.Pace) []chore {
	return []chore{
		{"partitions", time.Hour, true, func(ctx context.Context) (int, error) { return r.front.EnsurePartitions(ctx, partitionsAhead) }},
		{"retention", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.forget(ctx, goOn) }},
		{"events", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.front.ForgetEvents(ctx, r.opts.RetainEvents, goOn) }},
		{"approval", time.Minute, false, func(ctx context.Context) (int, error) { return r.expire(ctx, goOn) }},
		{"deadline", time.Minute, false, func(ctx context.Context) (int, error) { return r.endOverdue(ctx, goOn) }},
		{"pods", time.Minute, false, func(ctx context.Context) (int, error) {
			return dry(ctx, goOn, prunesAtOnce, keepPods, r.front.PrunePods)
		}},
		{"stranded", time.Minute, false, r.moveStranded},
		{"reconcile", time.Minute, false, r.reconcile},
		{"pipelines", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.prunePipelines(ctx, goOn) }},
		{"submissions", 10 * time.Minute, false, func(ctx context.Context) (int, error) {
			return dry(ctx, goOn, prunesAtOnce, keepSubmissions, r.front.PruneSubmissions)
		}},
		{"fires", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.front.PruneFires(ctx, r.opts.RetainEvents, goOn) }},
		{"keys", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.front.PruneKeys(ctx, goOn) }},
		{"vacuum", 10 * time.Minute, false, func(ctx context.Context) (int, error) { return r.vacuum(ctx, goOn) }},
	}
}

// dry goes on until a batch is not full, and returns the sum.
func dry(ctx context.Context, goOn store.Pace, limit int, age time.Duration, batch func(context.Context, time.Duration, int) (int, error)) (total int, err error) {
	for {
		if err := goOn(ctx); err != nil {
			return total, err
		}
		n, err := batch(ctx, age, limit)
		if total += n; err != nil || n < limit {
			return total, err
		}
	}
}

// expire cancels what nobody has approved in time.
func (r *Runner) expire(ctx context.Context, goOn store.Pace) (total int, err error) {
	if r.opts.ApprovalTTL < 0 {
		return 0, nil
	}
	return dry(ctx, goOn, choresAtOnce, r.opts.ApprovalTTL, func(ctx context.Context, age time.Duration, limit int) (int, error) {
		kinds, err := r.front.Expire(ctx, age, limit)
		r.count.ends.count(job.Cancelled, "", kinds...)
		return len(kinds), err
	})
}

// endOverdue fails what is too old, and tells the handlers of this pod; those of others learn it by their heartbeat.
func (r *Runner) endOverdue(ctx context.Context, goOn store.Pace) (total int, err error) {
	for {
		if err := goOn(ctx); err != nil {
			return total, err
		}
		list, err := r.front.EndOverdue(ctx, r.opts.MaxAge, choresAtOnce)
		if err != nil {
			return total, err
		}
		ended, failed := 0, 0
		for _, o := range list {
			switch {
			case o.Ended == nil:
			case *o.Ended == job.Failed:
				r.count.ends.count(job.Failed, job.ClassDeadline, o.Kind)
				ended, failed = ended+1, failed+1
			default:
				r.count.ends.count(*o.Ended, "", o.Kind)
				ended++
			}
			if one := r.runs.find(o.ID, o.Fence); one != nil && o.Pod != nil && one.lease.Pod == *o.Pod {
				r.cancelRun(one, job.ReasonDeadline)
			}
		}
		if failed > 0 {
			r.log.WarnContext(ctx, "jobs failed", telemetry.Jobs, failed, telemetry.ErrorClass, job.ClassDeadline)
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

// forget removes the jobs that have outlived their retention. What cannot be removed of one state holds up no other.
func (r *Runner) forget(ctx context.Context, goOn store.Pace) (total int, err error) {
	var errs []error
	for _, of := range []struct {
		state job.State
		keep  time.Duration
	}{{job.Succeeded, r.opts.RetainSucceeded}, {job.Failed, r.opts.RetainFailed}, {job.Cancelled, r.opts.RetainCancelled}} {
		if err := goOn(ctx); err != nil {
			errs = append(errs, err)
			break
		}
		n, err := r.front.Forget(ctx, string(of.state), of.keep, goOn)
		if n > 0 {
			r.emptied.forgotten.Add(1)
		}
		total += n
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
}

// deadAtLeast is how many dead rows a table may have whatever autovacuum waits for: less does not slow anything down.
const deadAtLeast = 10_000

// vacuum vacuums the small hot tables that autovacuum does not keep up with. Where this pod's role may not, it says so, once.
func (r *Runner) vacuum(ctx context.Context, goOn store.Pace) (done int, err error) {
	behind, err := r.front.Behind(ctx, deadAtLeast)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, b := range behind {
		if err := goOn(ctx); err != nil {
			return done, errors.Join(append(errs, err)...)
		}
		if !b.May {
			if !r.mayNotVacuum.Swap(true) {
				r.log.WarnContext(ctx, "autovacuum does not keep up, and this pod's role may not vacuum: let the tables' owner do it, make "+
					"autovacuum more eager, or grant the right named maintain (PostgreSQL 17)", telemetry.Table, b.Name, telemetry.Dead, b.Dead)
			}
			continue
		}
		if err := r.front.Vacuum(ctx, b); err != nil {
			errs = append(errs, err)
			continue
		}
		r.log.InfoContext(ctx, "autovacuum did not keep up: vacuumed", telemetry.Table, b.Name, telemetry.Dead, b.Dead)
		done++
	}
	return done, errors.Join(errs...)
}
