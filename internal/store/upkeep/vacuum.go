package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// behindSQL lists the small hot tables on which autovacuum has fallen behind: the number of dead rows, or of rows changed since the last
// analyze, exceeds both $2 and twice the number that triggers autovacuum. It also reports whether this role may vacuum each table. Plan:
// catalogs only.
const behindSQL = `
select c.relname::text, coalesce(t.n_dead_tup, 0), coalesce(t.n_mod_since_analyze, 0), v.dead, v.changed,
	pg_has_role(c.relowner, 'usage') or case when current_setting('server_version_num')::int >= 170000
		then has_table_privilege(c.oid, 'maintain') else false end
from pg_class c
join pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
join pg_stat_all_tables t on t.relid = c.oid
cross join lateral (
	select max(option_value) filter (where option_name = 'autovacuum_vacuum_threshold') as threshold,
		max(option_value) filter (where option_name = 'autovacuum_vacuum_scale_factor') as factor,
		max(option_value) filter (where option_name = 'autovacuum_analyze_threshold') as changes,
		max(option_value) filter (where option_name = 'autovacuum_analyze_scale_factor') as changed
	from pg_options_to_table(c.reloptions)
) o
cross join lateral (select
	t.n_dead_tup > $2 and t.n_dead_tup > 2 * (coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold'))::float8
		+ coalesce(o.factor, current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(c.reltuples, 0)) as dead,
	t.n_mod_since_analyze > $2 and t.n_mod_since_analyze > 2 * (coalesce(o.changes, current_setting('autovacuum_analyze_threshold'))::float8
		+ coalesce(o.changed, current_setting('autovacuum_analyze_scale_factor'))::float8 * greatest(c.reltuples, 0)) as changed
) v
where c.relkind = 'r' and c.relname = any($3::text[]) and (v.dead or v.changed)
order by 1`

// hotTables are small tables that are read or written for every job. Vacuuming one of them takes milliseconds.
var hotTables = []string{"live", "parked", "subjects", "pods", "lanes", "slot_grants", "job_progress", "unique_keys", "cancel_requests", "outbox",
	"submissions", "fan_outs", "maintenance"}

// Behind is a table on which autovacuum has fallen behind.
type Behind struct {
	Name    string
	Dead    int64 // number of dead rows
	Changed int64 // number of rows changed since the last analyze
	Vacuum  bool  // there are too many dead rows
	Analyze bool  // too many rows have changed
	May     bool  // this role may vacuum the table
}

// TablesBehind returns the small hot tables on which autovacuum has fallen behind. A table is listed if its number of dead rows, or of rows
// changed since the last analyze, exceeds both atLeast and twice the number that triggers autovacuum.
func TablesBehind(ctx context.Context, s *store.Store, atLeast int) ([]Behind, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Behind], behindSQL, s.Schema(), atLeast, hotTables)
	if err != nil {
		return nil, fmt.Errorf("find tables that autovacuum does not keep up with: %w", err)
	}
	return list, nil
}

// vacuumFor is the timeout for one vacuum. A vacuum that times out keeps its progress.
const vacuumFor = time.Minute

// Vacuum vacuums or analyzes a table on which autovacuum has fallen behind. It does not wait for locks, and skips a table that is locked,
// for example by autovacuum. It does not truncate the file, because truncation needs a lock that blocks all readers.
func Vacuum(ctx context.Context, s *store.Store, b Behind) error {
	sql := "vacuum (skip_locked, analyze, truncate false) "
	if !b.Vacuum {
		sql = "analyze (skip_locked) "
	}
	ctx, cancel := context.WithTimeout(ctx, vacuumFor)
	defer cancel()
	_, err := s.Pool().Exec(ctx, sql+pgx.Identifier{s.Schema(), b.Name}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("vacuum %s: %w", b.Name, err)
	}
	return err
}
