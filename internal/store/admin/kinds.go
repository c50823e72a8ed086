package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// Kind is a kind's declaration in the database. It is used by pods that do not know the kind, and for jobs submitted through SQL.
type Kind struct {
	Name       string
	OnFailure  json.RawMessage // steps in the format of jobs.planned, or nil if there are none
	MaxCrashes int             // 0 means the default of the pod that recovers a job
	PerKey     int             // number of jobs that may run for each key; 0 means no limit
	// StartMillis is the time within which a job must start after it is due; 0 means no limit.
	StartMillis int64
}

// keptKindsSQL reads the declarations of kinds. Plan: one pass over kinds, which fits in one page.
const keptKindsSQL = `select kind, on_failure::text, coalesce(max_crashes, 0), coalesce(per_key, 0), coalesce(start_within_ms, 0) from trapeze.kinds where kind = any($1)`

// declareKindsSQL replaces the declarations of a program's kinds. Plan: one pass over kinds, which fits in one page; primary key lookups.
const declareKindsSQL = `
with said as materialized (
	select * from unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $5::bigint[]) as s(kind, on_failure, max_crashes, per_key, start_within_ms)
), silent as (
	delete from trapeze.kinds k using said s where k.kind = s.kind and s.on_failure is null and s.max_crashes = 0 and s.per_key = 0 and s.start_within_ms = 0
)
insert into trapeze.kinds as k (kind, on_failure, max_crashes, per_key, start_within_ms)
select kind, on_failure::json, nullif(max_crashes, 0), nullif(per_key, 0), nullif(start_within_ms, 0) from said
where on_failure is not null or max_crashes > 0 or per_key > 0 or start_within_ms > 0 order by kind
on conflict (kind) do update set on_failure = excluded.on_failure, max_crashes = excluded.max_crashes, per_key = excluded.per_key,
	start_within_ms = excluded.start_within_ms
where row(k.on_failure::text, k.max_crashes, k.per_key, k.start_within_ms)
	is distinct from row(excluded.on_failure::text, excluded.max_crashes, excluded.per_key, excluded.start_within_ms)`

// DeclareKinds stores the declarations of the kinds that a program runs. If several programs declare a kind differently, the declaration of
// the program that started last applies.
func DeclareKinds(ctx context.Context, s *store.Store, kinds []Kind) error {
	type kept struct {
		Kind        string
		OnFailure   *string
		MaxCrashes  int
		PerKey      int
		StartMillis int64
	}
	names, plans, crashes, perKey, starts := make([]string, len(kinds)), make([]*string, len(kinds)), make([]int, len(kinds)), make([]int, len(kinds)), make([]int64, len(kinds))
	differ := make(map[string]kept, len(kinds)) // kinds whose declaration differs from the stored one
	for i, k := range kinds {
		names[i], plans[i], crashes[i], perKey[i], starts[i] = k.Name, store.Some(string(k.OnFailure)), k.MaxCrashes, k.PerKey, k.StartMillis
		if k.OnFailure != nil || k.MaxCrashes+k.PerKey > 0 || k.StartMillis > 0 {
			differ[k.Name] = kept{k.Name, plans[i], k.MaxCrashes, k.PerKey, k.StartMillis}
		}
	}
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[kept], keptKindsSQL, names)
	if err != nil {
		return fmt.Errorf("declare kinds: %w", err)
	}
	for _, k := range list {
		if said, ok := differ[k.Kind]; ok && said.MaxCrashes == k.MaxCrashes && said.PerKey == k.PerKey && said.StartMillis == k.StartMillis && equal(said.OnFailure, k.OnFailure) {
			delete(differ, k.Kind)
		} else {
			differ[k.Kind] = k
		}
	}
	if len(differ) == 0 {
		return nil // a pod whose declarations have not changed can start with read-only access
	}
	_, err = store.Rows(ctx, s, pgx.RowTo[string], declareKindsSQL, names, plans, crashes, perKey, starts)
	return text.Wrap(err, "declare kinds")
}

// equal reports whether both strings are nil or both have the same text.
func equal(a, b *string) bool {
	return a == b || a != nil && b != nil && *a == *b
}

const (
	// allRetentionsSQL lists the retention overrides of all kinds. Plan: one pass over kind_retention, which is small.
	allRetentionsSQL = `select kind, state, keep_s from trapeze.kind_retention order by kind, state`
	// lockRetentionSQL reads one override and locks it until the transaction ends. Plan: primary key lookup.
	lockRetentionSQL = `select keep_s from trapeze.kind_retention where kind = $1 and state = $2 for update`
	// setRetentionSQL sets an override. Plan: one insert, or a primary key lookup.
	setRetentionSQL = `
insert into trapeze.kind_retention (kind, state, keep_s) values ($1, $2, $3)
on conflict (kind, state) do update set keep_s = excluded.keep_s`
	// deleteRetentionSQL deletes an override. Plan: primary key lookup.
	deleteRetentionSQL = `delete from trapeze.kind_retention where kind = $1 and state = $2`
)

// Retentions returns the retention overrides, by kind and state.
func Retentions(ctx context.Context, s *store.Store) ([]job.Retention, error) {
	return view.Rows(ctx, s, "list the retention of kinds", pgx.RowToStructByPos[job.Retention], allRetentionsSQL)
}

// SetRetention sets how long jobs of a kind that ended in the given state are kept, or removes the override if keep is nil. If nothing
// changes, it writes no audit entry and no event. It returns [job.ErrInvalidSetting] if the setting is invalid.
func SetRetention(ctx context.Context, s *store.Store, kind string, state job.State, keep *job.Seconds, actor string) (done job.RetentionChanged, err error) {
	wanted := job.Retention{Kind: kind, State: state}
	if keep != nil {
		wanted.Keep = *keep
	}
	if err = wanted.Validate(); err == nil {
		done, err = inTx(ctx, s, func(tx pgx.Tx) (job.RetentionChanged, error) {
			return setRetentionIn(ctx, s, tx, kind, state, keep, actor)
		})
	}
	if err != nil {
		return job.RetentionChanged{}, fmt.Errorf("%w (retention of %s jobs of kind %q)", err, state, kind)
	}
	return done, nil
}

func setRetentionIn(ctx context.Context, s *store.Store, tx pgx.Tx, kind string, state job.State, keep *job.Seconds, actor string) (job.RetentionChanged, error) {
	done := job.RetentionChanged{Kind: kind, State: state, After: keep}
	before, err := store.Query(ctx, s, tx, pgx.RowTo[job.Seconds], lockRetentionSQL, kind, state)
	if err != nil {
		return done, err
	}
	if len(before) > 0 {
		done.Before = &before[0]
	}
	if same := (done.Before == nil) == (keep == nil) && (keep == nil || *keep == *done.Before); same {
		return done, nil
	}
	done.Changed = true
	if keep == nil {
		_, err = tx.Exec(ctx, s.In(deleteRetentionSQL), kind, state)
	} else {
		_, err = tx.Exec(ctx, s.In(setRetentionSQL), kind, state, *keep)
	}
	if err != nil {
		return done, err
	}
	type kept struct {
		State job.State    `json:"state"`
		Keep  *job.Seconds `json:"keep_s"` // null stands for the default
	}
	return done, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "retention.set", Target: "kind " + kind, Before: kept{state, done.Before}, After: kept{state, keep}},
		Event:      "retention.changed", About: kind,
	})
}
