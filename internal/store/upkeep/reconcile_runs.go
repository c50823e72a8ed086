package upkeep

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// strayRunsSQL locks at most $1 guards whose jobs are neither pending nor running. Each such guard would block all jobs of its subject
	// indefinitely. endStraySQL, which sees everything committed before the locks were taken, frees the guards. Every statement changes the
	// job and its guard together, so such guards exist only after rows were changed manually. Plan: one pass over
	// current_runs_one_running; live_pkey.
	strayRunsSQL = `
select c.kind, c.subject, c.job_id from trapeze.current_runs c
where c.state = 'running' and (select true from trapeze.live l where l.id = c.job_id and l.kind = c.kind and l.subject = c.subject limit 1) is null
order by c.kind, c.subject limit $1 for update of c skip locked`
	endStraySQL = `
update trapeze.current_runs c set state = 'ended' where c.kind = $1 and c.subject = $2 and c.job_id = $3 and c.state = 'running'
	and (select true from trapeze.live l where l.id = c.job_id and l.kind = c.kind and l.subject = c.subject limit 1) is null`
)

// StrayRun is a guard whose job was neither pending nor running.
type StrayRun struct {
	Kind, Subject string
	JobID         int64
}

// ReconcileRuns frees at most limit guards whose jobs are neither pending nor running, and returns them. Such guards exist only if rows were
// changed manually.
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
