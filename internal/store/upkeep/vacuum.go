package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// behindSQL lists the small hot tables that autovacuum does not keep up with: where rows that are dead, or have changed since the last
// analyze, are more than $2 and more than twice as many as those at which it comes by; and says of each whether this role may vacuum
// it. Plan: catalogs only.
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

// hotTables are small, and are read or written for every job: a vacuum of one takes milliseconds.
var hotTables = []string{"live", "parked", "current_runs", "pods", "lanes", "slot_grants", "job_progress", "unique_keys", "cancel_requests",
	"submissions", "fan_outs", "maintenance"}

// Behind is a table that autovacuum does not keep up with.
type Behind struct {
	Name    string
	Dead    int64 // rows
	Changed int64 // rows since the last analyze
	Vacuum  bool  // there are too many dead rows
	Analyze bool  // too many have changed
	May     bool  // this role may vacuum it
}

// TablesBehind lists the small hot tables that have more than so many rows dead, or changed since they were last analyzed, and of those more
// than twice as many as those at which autovacuum comes by.
func TablesBehind(ctx context.Context, s *store.Store, atLeast int) ([]Behind, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Behind], behindSQL, s.Schema(), atLeast, hotTables)
	if err != nil {
		return nil, fmt.Errorf("look for tables that autovacuum does not keep up with: %w", err)
	}
	return list, nil
}

// vacuumFor bounds one vacuum: it gives up, and what it did up to then is kept.
const vacuumFor = time.Minute

// Vacuum vacuums a table that is behind, or analyzes it. It waits for no lock: a table that somebody has locked, autovacuum for
// example, is passed by; and it leaves the file as long as it is, which would need one that stops everybody.
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
