package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// niceRunningSQL changes the priority that a running job will have if it is retried. elsewhere reports whether another engine runs the
	// job. Such an engine reads the priority and the planned steps when it ends the job, so no pod has to confirm them. Plan: Index Scan on
	// live_pkey, one row.
	niceRunningSQL = `
with held as materialized (
	select l.id, l.priority, substr(l.pod::text, 15, 1) = '8' as elsewhere from trapeze.live l where l.id = $1 and l.state = 'running' for update
), niced as (
	update trapeze.live l set priority = $2, event_no = l.event_no + 1 from held h where l.id = h.id
	returning l.id, l.event_no, l.fence
), event as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select n.id, n.event_no, n.fence, 'running', 'running', 'job.niced', $3, json_build_object('priority', $2::int, 'before', h.priority)
	from niced n join held h on h.id = n.id
)
select priority::int, elsewhere from held`
	// nextStepSQL finds the next step after a job. Plan: jobs_pkey, jobs_of_pipeline.
	nextStepSQL = `
select n.id from trapeze.jobs j join trapeze.jobs n on n.pipeline_id = j.pipeline_id and coalesce(n.group_id, 0) = coalesce(j.group_id, 0)
	and coalesce(n.child_no, 0) = coalesce(j.child_no, 0) and n.step > 0 and n.step = j.step + 1
where j.id = $1 and n.parent_id = j.id limit 1`
)

// SetChainPriority changes the priority of a running job's planned steps, and its own priority in case it is retried. It also asks the
// job's pod to apply the change, because the pod builds the next step from the plan that it read when it claimed the job, and returns that
// request. If another engine runs the job, it makes no request. It returns [job.ErrNotRunning] if the job is not running. If a handler's
// transaction has locked the job's row, SetChainPriority retries until that transaction has ended.
func SetChainPriority(ctx context.Context, s *store.Store, id int64, priority int, actor string) (request Asked, err error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	for {
		request, err = niceRunning(ctx, s, id, priority, actor)
		if err == nil {
			return request, nil
		}
		if !isHeld(err) {
			return request, fmt.Errorf("change the priority of the steps after job %d: %w", id, err)
		}
		select {
		case <-ctx.Done():
			return request, fmt.Errorf("change the priority of job %d: its row is locked by a transaction that does not end: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func niceRunning(ctx context.Context, s *store.Store, id int64, priority int, actor string) (request Asked, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		if err := s.BoundLocks(ctx, tx); err != nil {
			return err
		}
		type running struct {
			Priority  int
			Elsewhere bool
		}
		before, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[running], s.In(niceRunningSQL), []any{id, priority, actor})
		if err != nil {
			return err
		}
		if len(before) == 0 {
			return job.ErrNotRunning
		}
		if request = (Asked{}); !before[0].Elsewhere {
			a, err := ask(ctx, s, tx, id, store.RequestPriority, &priority)
			if err != nil || a == nil {
				return orElse(err, job.ErrNotRunning)
			}
			request = *a
		}
		steps, err := nicePlans(ctx, s, tx, id, priority)
		if err != nil {
			return err
		}
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.nice", Target: jobTarget(id),
			Before: map[string]any{"priority": before[0].Priority}, After: map[string]any{"priority": priority, "steps": steps}})
	})
	return request, err
}

// NextStep returns the job that follows a job in its chain, or 0 if there is none.
func NextStep(ctx context.Context, s *store.Store, id int64) (int64, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[int64], nextStepSQL, id)
	if err != nil {
		return 0, fmt.Errorf("find the step after job %d: %w", id, err)
	}
	return append(found, 0)[0], nil
}
