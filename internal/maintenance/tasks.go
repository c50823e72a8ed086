package maintenance

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// PartitionsAhead is how many days ahead partitions are created.
	PartitionsAhead = 7
	// keepPods, keepSubmissions and keepPipelines are the retention periods of closed pods, idempotency keys and pipelines without jobs.
	keepPods        = 168 * time.Hour
	keepSubmissions = 24 * time.Hour
	keepPipelines   = time.Hour
	// sumStatsAfter is the age at which an hour's statistics are added up. It leaves out the last hour, which the dashboard shows by
	// minute. keepStats is the retention period of statistics.
	sumStatsAfter = time.Hour
	keepStats     = 30 * 24 * time.Hour
	// endsAtOnce is the maximum number of jobs that a statement ends, and prunesAtOnce the maximum number of rows that it removes.
	endsAtOnce   = 500
	prunesAtOnce = 2000
)

// task is a part of the maintenance. It can be interrupted between batches, and two pods can run it concurrently.
type task struct {
	name  string
	every time.Duration
	do    func(ctx context.Context) (int, error)
}

// tasks returns all maintenance tasks. Those that work in batches call pace before each batch.
func (m *Maintenance) tasks(pace upkeep.Pace) []task {
	return []task{
		{"partitions", time.Minute, func(ctx context.Context) (int, error) {
			return upkeep.EnsurePartitions(ctx, m.o.Store, PartitionsAhead)
		}},
		{"retention", 10 * time.Minute, func(ctx context.Context) (int, error) { return m.prune(ctx, pace) }},
		{"events", 10 * time.Minute, func(ctx context.Context) (int, error) {
			return upkeep.ForgetEvents(ctx, m.o.Store, m.o.RetainEvents, pace)
		}},
		{"approval", time.Minute, func(ctx context.Context) (int, error) { return m.expire(ctx, pace) }},
		{"deadline", time.Minute, func(ctx context.Context) (int, error) { return m.endOverdue(ctx, pace) }},
		{"pods", time.Minute, func(ctx context.Context) (int, error) {
			return untilDry(ctx, pace, prunesAtOnce, keepPods, func(ctx context.Context, keep time.Duration, limit int) (int, error) {
				return upkeep.PrunePods(ctx, m.o.Store, keep, limit)
			})
		}},
		{"stranded", time.Minute, m.moveStranded},
		{"lanes", time.Minute, m.followTemplates},
		{"engines", time.Minute, m.moveLanes},
		{"reconcile", time.Minute, m.reconcile},
		{"pipelines", 10 * time.Minute, func(ctx context.Context) (int, error) { return m.prunePipelines(ctx, pace) }},
		{"submissions", 10 * time.Minute, func(ctx context.Context) (int, error) { // idempotency keys
			return untilDry(ctx, pace, prunesAtOnce, keepSubmissions, func(ctx context.Context, keep time.Duration, limit int) (int, error) {
				return upkeep.PruneSubmissions(ctx, m.o.Store, keep, limit)
			})
		}},
		{"occurrences", 10 * time.Minute, func(ctx context.Context) (int, error) {
			return upkeep.PruneOccurrences(ctx, m.o.Store, m.o.RetainEvents, pace)
		}},
		{"keys", 10 * time.Minute, func(ctx context.Context) (int, error) { return upkeep.PruneKeys(ctx, m.o.Store, pace) }}, // unique keys
		{"stats", 10 * time.Minute, func(ctx context.Context) (int, error) { return m.sumStats(ctx, pace) }},
		{"vacuum", 10 * time.Minute, func(ctx context.Context) (int, error) { return m.vacuum(ctx, pace) }},
	}
}

// untilDry calls batch until it returns less than limit, and returns the total.
func untilDry(ctx context.Context, pace upkeep.Pace, limit int, age time.Duration, batch func(context.Context, time.Duration, int) (int, error)) (total int, err error) {
	for {
		if err := pace(ctx); err != nil {
			return total, err
		}
		n, err := batch(ctx, age, limit)
		if total += n; err != nil || n < limit {
			return total, err
		}
	}
}

// expire cancels jobs that were not approved in time.
func (m *Maintenance) expire(ctx context.Context, pace upkeep.Pace) (total int, err error) {
	if m.o.ApprovalTTL <= 0 {
		return 0, nil
	}
	return untilDry(ctx, pace, endsAtOnce, m.o.ApprovalTTL, func(ctx context.Context, age time.Duration, limit int) (int, error) {
		ended, err := admin.Expire(ctx, m.o.Store, age, limit)
		m.o.Ended(ended)
		return len(ended), err
	})
}

// endOverdue fails jobs that are too old, and cancels their handlers on this pod. Heartbeats tell other pods to do the same.
func (m *Maintenance) endOverdue(ctx context.Context, pace upkeep.Pace) (total int, err error) {
	for {
		if err := pace(ctx); err != nil {
			return total, err
		}
		list, err := upkeep.EndOverdue(ctx, m.o.Store, m.o.MaxAge, endsAtOnce)
		if err != nil {
			return total, err
		}
		var ended []job.End
		failed := 0
		for _, o := range list {
			if o.Ended != nil {
				if ended = append(ended, *o.Ended); o.Ended.State == job.Failed {
					failed++
				}
				m.o.LinesChanged(store.Lines(o.Ended.Kind, o.Ended.Subject, o.Ended.Key)...)
			}
			if o.Pod != nil {
				m.o.Overdue(job.Lease{JobID: o.ID, Fence: o.Fence, Pod: *o.Pod})
			}
		}
		m.o.Ended(ended)
		if failed > 0 {
			m.o.Log.WarnContext(ctx, "jobs failed", telemetry.Jobs, failed, telemetry.ErrorClass, job.ClassDeadline)
		}
		total += len(ended)
		if len(ended) == 0 || len(list) < endsAtOnce {
			return total, nil
		}
	}
}

// prune removes jobs whose retention period has passed. An error for one state does not affect the other states.
func (m *Maintenance) prune(ctx context.Context, pace upkeep.Pace) (total int, err error) {
	var errs []error
	for _, of := range []struct {
		state job.State
		keep  time.Duration
	}{{job.Succeeded, m.o.RetainSucceeded}, {job.Failed, m.o.RetainFailed}, {job.Cancelled, m.o.RetainCancelled}} {
		if err := pace(ctx); err != nil {
			errs = append(errs, err)
			break
		}
		n, err := upkeep.Forget(ctx, m.o.Store, string(of.state), of.keep, pace)
		if n > 0 {
			m.pruned.batches.Add(1)
		}
		total += n
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
}

// sumStats adds up old statistics of finished jobs by hour, and deletes statistics that have expired.
func (m *Maintenance) sumStats(ctx context.Context, pace upkeep.Pace) (int, error) {
	summed, err := upkeep.SumStats(ctx, m.o.Store, sumStatsAfter, pace)
	gone, pruned := untilDry(ctx, pace, prunesAtOnce, keepStats, func(ctx context.Context, keep time.Duration, limit int) (int, error) {
		return upkeep.PruneStats(ctx, m.o.Store, keep, limit)
	})
	return summed + gone, errors.Join(err, pruned)
}

// deadAtLeast is the number of dead rows below which a table is not vacuumed, regardless of autovacuum's settings. Fewer dead rows do not
// slow anything down.
const deadAtLeast = 10_000

// vacuum vacuums the small hot tables if autovacuum does not keep up with them. If this pod's role lacks the privilege, vacuum logs a
// warning once.
func (m *Maintenance) vacuum(ctx context.Context, pace upkeep.Pace) (done int, err error) {
	behind, err := upkeep.TablesBehind(ctx, m.o.Store, deadAtLeast)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, b := range behind {
		if err := pace(ctx); err != nil {
			return done, errors.Join(append(errs, err)...)
		}
		if !b.May {
			if !m.mayNotVacuum.Swap(true) {
				m.o.Log.WarnContext(ctx, "autovacuum does not keep up, and this pod's role may not vacuum: run vacuum as the tables' owner, make "+
					"autovacuum more aggressive, or grant the privilege maintain (PostgreSQL 17)", telemetry.Table, b.Name, telemetry.Dead, b.Dead)
			}
			continue
		}
		if err := upkeep.Vacuum(ctx, m.o.Store, b); err != nil {
			errs = append(errs, err)
			continue
		}
		m.o.Log.InfoContext(ctx, "ran vacuum because autovacuum did not keep up", telemetry.Table, b.Name, telemetry.Dead, b.Dead)
		done++
	}
	return done, errors.Join(errs...)
}
