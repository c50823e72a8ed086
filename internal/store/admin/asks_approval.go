package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// asksApprovalSQL reports whether any of the given lanes, or the default lane of any of the given kinds, requires approval. Plan: one pass
// over lanes, which is small; lane_kinds_pkey.
const asksApprovalSQL = `
select exists (
	select from trapeze.lanes n where n.requires_approval and (n.name = any($1::text[]) or exists (
		select from unnest($2::text[]) as w(kind) left join trapeze.lane_kinds k on k.kind = w.kind
		where coalesce(k.lane, 'default') = n.name))
)`

// AsksApproval reports whether any of the given lanes, or the default lane of any of the given kinds, requires approval.
func AsksApproval(ctx context.Context, s *store.Store, lanes, kinds []string) (bool, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[bool], asksApprovalSQL, lanes, kinds)
	if err != nil {
		return false, fmt.Errorf("read which lanes require approval: %w", err)
	}
	return found[0], nil
}
