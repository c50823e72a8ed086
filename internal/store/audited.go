package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// audited does a change and writes it down in one transaction. do may complete the deed; one without an action has changed nothing.
func (s *Store) audited(ctx context.Context, d Deed, do func(ctx context.Context, tx pgx.Tx, d *Deed) error) error {
	what := d.Action + " " + d.Target
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		d := d
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
