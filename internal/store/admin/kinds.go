package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// keptKindsSQL reads the stored on-failure jobs of kinds. Plan: kinds is a page.
const keptKindsSQL = `select kind, on_failure::text from trapeze.kinds where kind = any($1)`

// declareKindsSQL replaces the stored on-failure jobs of a program's kinds. Plan: kinds is a page; primary key.
const declareKindsSQL = `
with said as materialized (
	select * from unnest($1::text[], $2::text[]) as s(kind, on_failure)
), silent as (
	delete from trapeze.kinds k using said s where k.kind = s.kind and s.on_failure is null
)
insert into trapeze.kinds as k (kind, on_failure) select kind, on_failure::json from said where on_failure is not null order by kind
on conflict (kind) do update set on_failure = excluded.on_failure where k.on_failure::text <> excluded.on_failure::text`

type keptKind struct{ Kind, OnFailure string }

// DeclareKinds keeps the plans for the failure of jobs of the kinds that a program runs, by kind; nil: it has none. The program that
// starts last is right.
func DeclareKinds(ctx context.Context, s *store.Store, plans map[string]json.RawMessage) error {
	kept, err := store.Rows(ctx, s, pgx.RowToStructByPos[keptKind], keptKindsSQL, slices.Collect(maps.Keys(plans)))
	if err != nil {
		return fmt.Errorf("declare kinds: %w", err)
	}
	same := 0
	for _, k := range kept {
		if string(plans[k.Kind]) == k.OnFailure {
			same++
		}
	}
	said := 0
	for _, plan := range plans {
		if plan != nil {
			said++
		}
	}
	if same == len(kept) && same == said {
		return nil // a role that may only read starts pods that change nothing
	}
	kinds, texts := make([]string, 0, len(plans)), make([]*string, 0, len(plans))
	for kind, plan := range plans {
		kinds, texts = append(kinds, kind), append(texts, store.Some(string(plan)))
	}
	if _, err := s.Pool().Exec(ctx, s.In(declareKindsSQL), kinds, texts); err != nil {
		return fmt.Errorf("declare kinds: %w", err)
	}
	return nil
}
