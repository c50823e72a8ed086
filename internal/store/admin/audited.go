package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// withAudit does a change and writes it down in one transaction. do may complete the deed; one without an action has changed nothing.
func withAudit(ctx context.Context, s *store.Store, d Deed, do func(ctx context.Context, tx pgx.Tx, d *Deed) error) error {
	what := d.Action + " " + d.Target
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		d := d
		if err := do(ctx, tx, &d); err != nil || d.Action == "" {
			return err
		}
		return auditIn(ctx, s, tx, d)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
