package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// ownerSQL reads a job's submitter, which never changes. Plan: jobs_pkey, one row.
const ownerSQL = `select submitter from trapeze.jobs where id = $1`

// Owner returns the submitter of a job, or of a pipeline if id is the id of the pipeline's first job. Steps and branches inherit their
// submitter. Owner returns [job.ErrNotFound] if the job does not exist.
func Owner(ctx context.Context, s *store.Store, id int64) (string, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[string], ownerSQL, id)
	if err != nil {
		return "", fmt.Errorf("read the submitter of job %d: %w", id, err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("read job %d: %w", id, job.ErrNotFound)
	}
	return found[0], nil
}
