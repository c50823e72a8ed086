package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// notesSQL reads the progress reported by the given jobs and by the latest jobs of the given pipelines. Plan: primary key lookups,
// jobs_of_pipeline.
const notesSQL = `
select 0::bigint, g.id, g.done, g.total, g.message from unnest($1::bigint[]) as w(id) join trapeze.job_progress g on g.id = w.id
union all
select w.id, p.last_job, p.progress_done, p.progress_total, p.progress_message
from unnest($2::bigint[]) as w(id) join trapeze.pipeline p on p.id = w.id
union all
select w.id, g.id, g.done, g.total, g.message from unnest($2::bigint[]) as w(id) join trapeze.job_progress g on g.id = w.id
where not exists (select from trapeze.pipelines p where p.id = w.id)`

// Note is the progress that a job has reported.
type Note struct {
	Pipeline int64 // the pipeline for which the progress was requested, or 0 if it was requested for a job
	Job      int64
	job.Progress
}

// Notes returns the progress reported by the given jobs and by the latest jobs of the given pipelines. It omits jobs that have not reported
// any.
func Notes(ctx context.Context, s *store.Store, jobs, pipelines []int64) ([]Note, error) {
	list, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (n Note, err error) {
		return n, row.Scan(&n.Pipeline, &n.Job, &n.Done, &n.Total, &n.Message)
	}, notesSQL, orNone(jobs), orNone(pipelines))
	if err != nil {
		return nil, fmt.Errorf("read the progress of jobs: %w", err)
	}
	return list, nil
}
