package upkeep

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// strayRunsSQL locks at most $1 runs that are marked as running even though their jobs are not running. Each such run would block all
	// jobs of its subject indefinitely. endStraySQL, which sees everything committed before the locks were taken, ends the runs. Claims and
	// finishes change the job and its run in one statement, so such runs exist only after rows were changed manually. Plan: one pass over
	// current_runs_one_running; live_pkey.
	strayRunsSQL = `
select c.kind, c.subject, c.job_id from trapeze.current_runs c
where c.state = 'running' and (select true from trapeze.live l where l.id = c.job_id and l.state = 'running' and l.kind = c.kind and l.subject = c.subject limit 1) is null
order by c.kind, c.subject limit $1 for update of c skip locked`
	endStraySQL = `
update trapeze.current_runs c set state = 'ended' where c.kind = $1 and c.subject = $2 and c.job_id = $3 and c.state = 'running'
	and (select true from trapeze.live l where l.id = c.job_id and l.state = 'running' and l.kind = c.kind and l.subject = c.subject limit 1) is null`
)

// StrayRun is a run that was marked as running even though its job was not.
type StrayRun struct {
	Kind, Subject string
	JobID         int64
}

// ReconcileRuns ends at most limit runs that are marked as running even though their jobs are not running, and returns them. Such runs
// exist only if rows were changed manually.
func ReconcileRuns(ctx context.Context, s *store.Store, limit int) (ended []StrayRun, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		ended = nil
		list, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[StrayRun], s.In(strayRunsSQL), []any{limit})
		if err != nil {
			return err
		}
		for _, run := range list {
			tag, err := tx.Exec(ctx, s.In(endStraySQL), run.Kind, run.Subject, run.JobID)
			if err != nil {
				return err
			}
			if tag.RowsAffected() > 0 {
				ended = append(ended, run)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reconcile the runs of subjects: %w", err)
	}
	return ended, nil
}
