package view

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// enqueuedSQL lists the jobs of one kind, or all jobs if $1 is null, oldest first. It is meant for tests, whose tables are small. Plan:
// jobs_by_age, to its end.
const enqueuedSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where $1::text is null or kind = $1 order by created_at, id`

// Enqueued returns the jobs of one kind, or of all kinds if kind is empty, oldest first. It reads the tables in the given schema, through
// the connection or transaction db.
func Enqueued(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, schema, kind string) ([]job.Job, error) {
	rows, err := db.Query(ctx, store.InSchema(schema, enqueuedSQL), store.Some(kind))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanJob)
}
