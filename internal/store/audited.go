package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// audited does a change and writes it down in one transaction. do may complete the deed; one without an action has changed nothing.
func (s *Store) audited(ctx context.Context, d Deed, do func(ctx context.Context, tx pgx.Tx, d *Deed) error) error {
	what := d.Action + " " + d.Target
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := do(ctx, tx, &d); err != nil || d.Action == "" {
			return err
		}
		return s.auditIn(ctx, tx, d)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// inTx collects the rows of a statement in the caller's transaction.
func inTx[T any](ctx context.Context, s *Store, tx pgx.Tx, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	result, err := tx.Query(ctx, s.in(sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, scan)
}
