package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// asksApprovalSQL reports whether any of the given lanes, or the default lane of any of the given kinds, requires approval, and whether the
// approver must not be the submitter. Plan: one pass over lanes, which is small; lane_kinds_pkey.
const asksApprovalSQL = `
select count(*) > 0, coalesce(bool_or(n.four_eyes), false)
from trapeze.lanes n where n.requires_approval and (n.name = any($1::text[]) or exists (
	select from unnest($2::text[]) as w(kind) left join trapeze.lane_kinds k on k.kind = w.kind
	where coalesce(k.lane, 'default') = n.name))`

// Asks describes the approval that a set of lanes requires.
type Asks struct {
	Approval bool
	FourEyes bool // the approver must not be the submitter
}

// AsksApproval reports whether any of the given lanes, or the default lane of any of the given kinds, requires approval.
func AsksApproval(ctx context.Context, s *store.Store, lanes, kinds []string) (Asks, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[Asks], asksApprovalSQL, lanes, kinds)
	if err != nil {
		return Asks{}, fmt.Errorf("read which lanes require approval: %w", err)
	}
	return found[0], nil
}

// kindAttemptsSQL reads, for each of the given kinds, the highest attempt limit that any open pod reports. Plan: one pass over pods, which
// is small, for each kind.
const kindAttemptsSQL = `
select w.kind, (select max((p.limits -> w.kind ->> 'max_attempts')::int) from trapeze.pods p where p.closed_at is null)
from unnest($1::text[]) as w(kind)`

// KindAttempts returns each given kind's attempt limit. The limit is nil for a kind that no open pod handles.
func KindAttempts(ctx context.Context, s *store.Store, kinds []string) (map[string]*int, error) {
	type row struct {
		Kind string
		Most *int
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], kindAttemptsSQL, kinds)
	if err != nil {
		return nil, fmt.Errorf("read the limits on attempts: %w", err)
	}
	most := map[string]*int{}
	for _, r := range found {
		most[r.Kind] = r.Most
	}
	return most, nil
}
