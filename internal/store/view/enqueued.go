package view

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// enqueuedSQL lists the jobs of a kind, or all ($1 is null), oldest first. It is for tests, whose tables are small.
// Plan: jobs_by_age, to its end.
const enqueuedSQL = `select ` + jobColumns + ` from ` + jobOf + ` job where $1::text is null or kind = $1 order by created_at, id`

// Enqueued returns the jobs of a kind (empty: all), oldest first, as a connection or a transaction sees them in the tables of a
// schema.
func Enqueued(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, schema, kind string) ([]job.Job, error) {
	rows, err := db.Query(ctx, store.InSchema(schema, enqueuedSQL), store.Some(kind))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanJob)
}
