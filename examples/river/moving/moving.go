// Package moving moves waiting jobs from River to Trapeze.
package moving

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/trapeze-run/trapeze/runner"
)

// Open returns the number of River's jobs that have not ended. Once it returns 0, River can be removed.
func Open(ctx context.Context, client *river.Client[pgx.Tx]) (int, error) {
	list, err := client.JobList(ctx, river.NewJobListParams().First(10_000).States(
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled))
	if err != nil {
		return 0, err
	}
	return len(list.Jobs), nil
}

// Move moves up to a hundred of River's scheduled jobs to Trapeze in one transaction, and returns how many it moved. The jobs keep their
// kinds and JSON arguments, but their attempts are reset. Call Move until it returns 0. If Move returns an error, for example because River
// has started one of the jobs in the meantime, nothing was moved and Move can be called again.
func Move(ctx context.Context, client *river.Client[pgx.Tx], r *runner.Runner) (moved int, err error) {
	err = r.Tx(ctx, func(tx pgx.Tx) error {
		list, err := client.JobListTx(ctx, tx, river.NewJobListParams().First(100).States(rivertype.JobStateScheduled))
		if err != nil {
			return err
		}
		for _, j := range list.Jobs {
			if _, err := client.JobDeleteTx(ctx, tx, j.ID); err != nil {
				return fmt.Errorf("job %d: %w", j.ID, err)
			}
			args := runner.Raw{Name: j.Kind, JSON: j.EncodedArgs}
			if _, err := r.EnqueueTx(ctx, tx, args, runner.Delay(max(0, time.Until(j.ScheduledAt)))); err != nil {
				return fmt.Errorf("job %d: %w", j.ID, err)
			}
		}
		moved = len(list.Jobs)
		return nil
	})
	if err != nil {
		moved = 0
	}
	return moved, err
}
