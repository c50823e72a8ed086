package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// beginTaskSQL assigns a maintenance task to a pod unless a pod began the task less than $2 ms ago, by the database's clock. If several
	// pods ask concurrently, only one of them gets the task. If $2 is 0, every pod gets it. A start time in the future is ignored; it can
	// occur after the clock has been set back. Plan: primary key, one row.
	beginTaskSQL = `
insert into trapeze.maintenance as m (task, begun_at, pod) values ($1, clock_timestamp(), $3)
on conflict (task) do update set begun_at = excluded.begun_at, pod = excluded.pod
where $2::bigint = 0 or m.begun_at not between clock_timestamp() - $2 * interval '1 millisecond' and clock_timestamp()
returning 1`
	// endTaskSQL records a task's result.
	endTaskSQL = `
update trapeze.maintenance set done_at = clock_timestamp(), pod = $2, count = $3, seconds = $4, error = $5 where task = $1 returning 1`
	taskRunsSQL = `
select task, begun_at, done_at, pod, count, seconds, error, extract(epoch from clock_timestamp() - coalesce(done_at, begun_at))::float8
from trapeze.maintenance order by task`
)

// TaskRun describes the last run of a maintenance task: its times, its pod and its result.
type TaskRun struct {
	Task    string
	BegunAt time.Time
	DoneAt  *time.Time // nil if the task has never finished
	Pod     string
	Count   int64
	Seconds float64
	Error   string
	Ago     float64 // seconds since the task finished, or since it began if it has never finished
}

// BeginTask assigns a task to a pod, unless a pod began the task less than within ago, and reports whether it did so. If within is 0, it
// always assigns the task.
func BeginTask(ctx context.Context, s *store.Store, task, pod string, within time.Duration) (bool, error) {
	given, err := store.Rows(ctx, s, pgx.RowTo[int], beginTaskSQL, task, within.Milliseconds(), pod)
	if err != nil {
		return false, fmt.Errorf("start maintenance task %s: %w", task, err)
	}
	return len(given) > 0, nil
}

// EndTask records that a task has finished, with or without an error.
func EndTask(ctx context.Context, s *store.Store, t TaskRun) error {
	if _, err := store.Rows(ctx, s, pgx.RowTo[int], endTaskSQL, t.Task, t.Pod, t.Count, t.Seconds, t.Error); err != nil {
		return fmt.Errorf("record the end of maintenance task %s: %w", t.Task, err)
	}
	return nil
}

// TaskRuns returns the last run of each task that has ever begun.
func TaskRuns(ctx context.Context, s *store.Store) ([]TaskRun, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[TaskRun], taskRunsSQL)
	if err != nil {
		return nil, fmt.Errorf("read the runs of maintenance tasks: %w", err)
	}
	return list, nil
}
