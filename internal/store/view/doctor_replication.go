package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// unidentifiedSQL lists the tables without a usable replica identity that are in a publication of updates or deletes, which PostgreSQL
// therefore refuses. A partition is also in the publications of its parents. Plan: reads only system catalogs; publications are read only
// for tables without a replica identity.
const unidentifiedSQL = `
select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
where c.relkind = 'r' and c.relreplident <> 'f'
	and not exists (select from pg_index i where i.indrelid = c.oid and i.indisvalid
		and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end)
	and exists (select from pg_publication p join pg_publication_tables t on t.pubname = p.pubname
		where (p.pubupdate or p.pubdelete) and t.schemaname = $1 and t.tablename in (
			select a.relname from pg_class a where a.oid = c.oid or a.oid in (select pg_partition_ancestors(c.oid))))
order by 1`

// Unidentified returns the published tables without a replica identity.
func Unidentified(ctx context.Context, s *store.Store) ([]string, error) {
	list, err := store.Rows(ctx, s, pgx.RowTo[string], unidentifiedSQL, s.Schema())
	if err != nil {
		return nil, fmt.Errorf("find tables without a replica identity: %w", err)
	}
	return list, nil
}

// weakTriggersSQL lists the triggers that are disabled, or that a session_replication_role of replica disables. It leaves out the
// application's own triggers, whose functions are in other schemas. Plan: reads only system catalogs.
const weakTriggersSQL = `
select t.tgname::text, c.relname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
	join pg_proc f on f.oid = t.tgfoid and f.pronamespace = n.oid
where n.nspname = $1 and t.tgenabled <> 'A' and t.tgconstraint = 0 order by 2, 1`

// Trigger names a trigger and its table.
type Trigger struct{ Name, Table string }

// WeakTriggers returns the triggers of Trapeze that are not always enabled.
func WeakTriggers(ctx context.Context, s *store.Store) ([]Trigger, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Trigger], weakTriggersSQL, s.Schema())
	if err != nil {
		return nil, fmt.Errorf("find triggers that are not always enabled: %w", err)
	}
	return list, nil
}
