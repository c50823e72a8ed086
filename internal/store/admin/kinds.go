package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// Kind is a kind's declaration in the database. It is used by pods that do not know the kind, and for jobs submitted through SQL.
type Kind struct {
	Name       string
	OnFailure  json.RawMessage // steps in the format of jobs.planned, or nil if there are none
	MaxCrashes int             // 0 means the default of the pod that recovers a job
}

// keptKindsSQL reads the declarations of kinds. Plan: one pass over kinds, which fits in one page.
const keptKindsSQL = `select kind, on_failure::text, coalesce(max_crashes, 0) from trapeze.kinds where kind = any($1)`

// declareKindsSQL replaces the declarations of a program's kinds. Plan: one pass over kinds, which fits in one page; primary key lookups.
const declareKindsSQL = `
with said as materialized (
	select * from unnest($1::text[], $2::text[], $3::integer[]) as s(kind, on_failure, max_crashes)
), silent as (
	delete from trapeze.kinds k using said s where k.kind = s.kind and s.on_failure is null and s.max_crashes = 0
)
insert into trapeze.kinds as k (kind, on_failure, max_crashes) select kind, on_failure::json, nullif(max_crashes, 0) from said
where on_failure is not null or max_crashes > 0 order by kind
on conflict (kind) do update set on_failure = excluded.on_failure, max_crashes = excluded.max_crashes
where row(k.on_failure::text, k.max_crashes) is distinct from row(excluded.on_failure::text, excluded.max_crashes)`

// DeclareKinds stores the declarations of the kinds that a program runs. If several programs declare a kind differently, the declaration of
// the program that started last applies.
func DeclareKinds(ctx context.Context, s *store.Store, kinds []Kind) error {
	type kept struct {
		Kind       string
		OnFailure  *string
		MaxCrashes int
	}
	names, plans, crashes := make([]string, len(kinds)), make([]*string, len(kinds)), make([]int, len(kinds))
	differ := make(map[string]kept, len(kinds)) // kinds whose declaration differs from the stored one
	for i, k := range kinds {
		names[i], plans[i], crashes[i] = k.Name, store.Some(string(k.OnFailure)), k.MaxCrashes
		if k.OnFailure != nil || k.MaxCrashes > 0 {
			differ[k.Name] = kept{k.Name, plans[i], k.MaxCrashes}
		}
	}
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[kept], keptKindsSQL, names)
	if err != nil {
		return fmt.Errorf("declare kinds: %w", err)
	}
	for _, k := range list {
		if said, ok := differ[k.Kind]; ok && said.MaxCrashes == k.MaxCrashes && equal(said.OnFailure, k.OnFailure) {
			delete(differ, k.Kind)
		} else {
			differ[k.Kind] = k
		}
	}
	if len(differ) == 0 {
		return nil // a pod whose declarations have not changed can start with read-only access
	}
	if _, err := store.Rows(ctx, s, pgx.RowTo[string], declareKindsSQL, names, plans, crashes); err != nil {
		return fmt.Errorf("declare kinds: %w", err)
	}
	return nil
}

// equal reports whether both strings are nil or both have the same text.
func equal(a, b *string) bool {
	return a == b || a != nil && b != nil && *a == *b
}
