package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// withAudit makes a change and writes its audit entry in one transaction. The callback do can fill in the entry. If nothing has changed, it
// clears the entry's action, and no entry is written.
func withAudit(ctx context.Context, s *store.Store, d AuditEntry, do func(ctx context.Context, tx pgx.Tx, d *AuditEntry) error) error {
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
