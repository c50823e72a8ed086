package maintenance

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// overdueAfter is the number of intervals without a run after which a task is overdue and other pods may run it. The leader may be
	// frozen even though its session and lock still exist.
	overdueAfter = 3
	// restAtMost is the maximum pause between two batches of a task. Up to this limit, a pause is as long as the previous batch took.
	restAtMost = 200 * time.Millisecond
)

var errLeadLost = errors.New("another pod leads the maintenance")

// run decides whether this pod runs a task now, and whether it continues. Only the task's goroutine uses it.
type run struct {
	task
	m    *Maintenance
	lead *leader

	role  role
	asked time.Time // when this pod last asked for the task without being the leader
	noted time.Time // when the task's row was last updated during the run
	began time.Time // start of the current batch
}

// start runs the task if it is this pod's turn. A leader always runs it. If the leader is unknown, the first pod to ask runs it. Other pods
// run the task only if it is overdue. Which pod asked first is decided by the task's row and the database's clock.
func (r *run) start(ctx context.Context) {
	r.role = r.lead.role()
	if r.role == leading && !r.lead.still(ctx) {
		r.role = standby // the next check finds the leader
	}
	within := time.Duration(0)
	switch {
	case r.role == sharing:
		within = r.every * 8 / 10
	case r.role == standby:
		if within = overdueAfter * r.every; time.Since(r.asked) < within {
			return
		}
		r.asked = time.Now()
	}
	mine, err := upkeep.BeginTask(ctx, r.m.o.Store, r.name, r.m.o.Pod, within)
	if err == nil && !mine {
		return
	}
	r.noted, r.began = time.Now(), time.Time{}
	began := time.Now()
	n := 0
	if err == nil {
		n, err = r.do(ctx)
	}
	r.end(ctx, n, time.Since(began), err)
}

// end records a run's result in the log, the metrics and the task's row.
func (r *run) end(ctx context.Context, n int, took time.Duration, err error) {
	metrics, log := r.m.o.Metrics, r.m.o.Log
	metrics.Tasks.WithLabelValues(r.name).Add(float64(n))
	metrics.TaskSeconds.WithLabelValues(r.name).Observe(took.Seconds())
	note := upkeep.TaskRun{Task: r.name, Pod: r.m.o.Pod, Count: int64(n), Seconds: took.Seconds()}
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errLeadLost):
		log.InfoContext(ctx, "maintenance left to another pod", telemetry.Task, r.name, telemetry.Count, n)
		return // the row now belongs to the other pod
	case err != nil:
		err = r.m.o.Count(err)
		metrics.TaskErrors.WithLabelValues(r.name).Inc()
		log.WarnContext(ctx, "maintenance failed, retrying with the next run", telemetry.Task, r.name, telemetry.Count, n, telemetry.Err, err)
		note.Error = job.Storable(err.Error(), 1000)
	default:
		metrics.TaskDone.WithLabelValues(r.name).Set(float64(time.Now().UnixNano()) / 1e9)
		if n > 0 {
			log.InfoContext(ctx, "maintenance done", telemetry.Task, r.name, telemetry.Count, n)
		}
	}
	if err := upkeep.EndTask(ctx, r.m.o.Store, note); err != nil && ctx.Err() == nil {
		log.DebugContext(ctx, "could not record the end of a maintenance task", telemetry.Task, r.name, telemetry.Err, r.m.o.Count(err))
	}
}

// pace is called before each batch. It waits for as long as the previous batch took, but at most restAtMost. Its error stops the task when
// this pod stops or another one leads.
func (r *run) pace(ctx context.Context) error {
	if !r.began.IsZero() && !routine.Sleep(ctx, min(time.Since(r.began), restAtMost)) || ctx.Err() != nil {
		return ctx.Err()
	}
	if r.role == leading && !r.lead.still(ctx) {
		return errLeadLost
	}
	if time.Since(r.noted) > r.every/2 { // keeps a long task from becoming overdue
		if _, err := upkeep.BeginTask(ctx, r.m.o.Store, r.name, r.m.o.Pod, 0); err != nil {
			return err
		}
		r.noted = time.Now()
	}
	r.began = time.Now()
	return nil
}
