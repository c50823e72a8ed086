package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// deletableSQL lists all jobs in the pipeline that starts with the given job, and whether each job has ended. For a later step of a
// pipeline, it lists only that step. Plan: jobs_pkey, jobs_of_pipeline; primary key lookups.
const deletableSQL = `
select j.id, j.pipeline_id, not coalesce((select true from trapeze.live l where l.id = j.id limit 1),
	(select true from trapeze.parked p where p.id = j.id limit 1), false)
from (
	select f.id, f.pipeline_id from trapeze.jobs f where f.id = $1
	union all
	select s.id, s.pipeline_id from trapeze.jobs s where s.pipeline_id = $1 and s.step > 0
) j`

// deleteEndsSQL deletes the done rows of jobs, the row of their pipeline, and the idempotency keys that refer to them. Plan: the id index of done of
// each day; pipelines_pkey; one pass over submissions, which holds only one day of rows.
const deleteEndsSQL = `
with pipeline as (
	delete from trapeze.pipelines where id = $1
), answers as (
	delete from trapeze.submissions where job_id = any($2::bigint[])
)
delete from trapeze.done where id = any($2::bigint[])`

// Delete deletes a job that has ended. For the first job in a pipeline, it deletes the whole pipeline. A later step cannot be deleted
// alone, because the other jobs depend on it. The history is kept until its retention period has passed. Delete returns the number of
// deleted jobs. It returns [job.ErrNotFound] if the job does not exist, [job.ErrNotTerminal] if a job has not ended or is still awaited,
// and [job.ErrPartOfPipeline] if the job is a later step.
func Delete(ctx context.Context, s *store.Store, id int64, actor string) (n int, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		ids, err := deletable(ctx, s, tx, id)
		if err != nil {
			return err
		}
		// From here on, none of these jobs can be retried. Relisting the jobs reveals changes made before they were locked.
		if _, err := upkeep.LockEnded(ctx, s, tx, ids); err != nil {
			return err
		}
		locked := len(ids)
		if ids, err = deletable(ctx, s, tx, id); err != nil {
			return err
		}
		if len(ids) != locked {
			return job.ErrNotTerminal // one of the jobs was retried in the meantime
		}
		awaited, err := upkeep.DeleteJobs(ctx, s, tx, ids)
		if err != nil {
			return err
		}
		if awaited > 0 {
			return job.ErrNotTerminal
		}
		if _, err := tx.Exec(ctx, s.In(deleteEndsSQL), id, ids); err != nil {
			return err
		}
		n = len(ids)
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.delete", Target: jobTarget(id), After: map[string]any{"jobs": n}})
	})
	if err != nil {
		return 0, fmt.Errorf("delete job %d: %w", id, err)
	}
	return n, nil
}

// deletable lists the jobs that must be deleted together with the given job.
func deletable(ctx context.Context, s *store.Store, tx pgx.Tx, id int64) (ids []int64, err error) {
	type row struct {
		ID, Pipeline int64
		Ended        bool
	}
	list, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[row], s.In(deletableSQL), []any{id})
	if err != nil {
		return nil, err
	}
	for _, j := range list {
		switch {
		case !j.Ended && j.ID == id:
			return nil, job.ErrNotTerminal
		case j.Pipeline != id:
			return nil, fmt.Errorf("pipeline %d: %w", j.Pipeline, job.ErrPartOfPipeline)
		case !j.Ended:
			return nil, fmt.Errorf("job %d of the pipeline: %w", j.ID, job.ErrNotTerminal)
		}
		ids = append(ids, j.ID)
	}
	if len(ids) == 0 {
		return nil, job.ErrNotFound
	}
	return ids, nil
}
