package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Warm opens connections in the store's own pool, in parallel, and makes PostgreSQL plan the hot statements on each of them by executing
// the statements without touching any row. Otherwise, the first claim on a connection takes ten times as long as the second. Behind a
// pooler, Warm does nothing, because no plan would be kept.
func (db *Database) Warm(ctx context.Context, connections int) error {
	if db.pooled {
		return nil
	}
	ctx, cancel := db.Bounded(ctx)
	defer cancel()
	errs := make(chan error, connections)
	for range connections {
		go func() { errs <- db.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return db.plan(ctx, c) }) }()
	}
	var failed error
	for range connections {
		if err := <-errs; err != nil {
			failed = fmt.Errorf("warm up: %w", err)
		}
	}
	return failed
}

// plan executes each hot statement without touching any row.
func (db *Database) plan(ctx context.Context, conn *pgxpool.Conn) error {
	for _, hot := range []*statement{claimSQL, endSQL, endOneSQL, finishSQL, finishOneSQL, enqueueSQL, enqueueOneSQL} {
		if _, err := conn.Exec(ctx, db.In(hot.text), make([]any, len(hot.names))...); err != nil {
			return err
		}
	}
	return nil
}
