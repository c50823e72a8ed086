package admin

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Lanes that were made from a template follow it: a change of the template changes them in the same transaction. A lane that is being made at that moment
// can have the old settings; maintenance corrects it. If a template is deleted, its lanes keep their settings until they are deleted, too.
var (
	// followSettingsSQL gives lanes the settings of their template, or of all templates if $1 is null. Rows are locked in the order of their names. Plan: two
	// passes over lanes.
	followSettingsSQL = `
with wrong as materialized (
	select n.name from trapeze.lanes t join trapeze.lanes n on n.template = t.name
	where ($1::text is null or t.name = $1) and (` + store.LaneSettings("n.") + `) is distinct from (` + store.LaneSettings("t.") + `) order by n.name for no key update of n
)
update trapeze.lanes n set (` + store.LaneSettings("") + `) = (select ` + store.LaneSettings("t.") + ` from trapeze.lanes t where t.name = n.template)
from wrong w where n.name = w.name and n.template is not null returning n.name`
	// followLimitsSQL is like followSettingsSQL, for limits. A lane or key that a handler holds stays held. Plan: a pass each over lanes and limits.
	followLimitsSQL = `
with pair as materialized (
	select n.name, t.name as template from trapeze.lanes t join trapeze.lanes n on n.template = t.name where $1::text is null or t.name = $1
), wanted as materialized (
	select p.name, x.key, ` + store.LimitValues("x.") + ` from pair p join trapeze.limits x on x.scope = 'lane' and x.name = p.template
	where coalesce(x.slots, x.weight, x.rate) is not null
), unwanted as materialized (
	select x.name, x.key from trapeze.limits x join pair p on p.name = x.name where x.scope = 'lane'
		and coalesce(x.slots, x.weight, x.rate) is not null and not exists (select from wanted w where w.name = x.name and w.key = x.key)
), cleared as (
	update trapeze.limits x set slots = null, weight = null, rate = null, per = null, burst = null, next_start = null
	from unwanted u where x.held_until > now() and x.scope = 'lane' and x.name = u.name and x.key = u.key
), gone as (
	delete from trapeze.limits x using unwanted u where coalesce(x.held_until <= now(), true) and x.scope = 'lane' and x.name = u.name and x.key = u.key returning x.name
), set as (
	insert into trapeze.limits as x (scope, name, key, ` + store.LimitValues("") + `) select 'lane', name, key, ` + store.LimitValues("") + ` from wanted order by name, key
	on conflict (scope, name, key) do update set (` + store.LimitValues("") + `) = (` + store.LimitValues("excluded.") + `),
		next_start = ` + startsAt("excluded.per", "excluded.rate") + `
	where (` + store.LimitValues("x.") + `) is distinct from (` + store.LimitValues("excluded.") + `) returning x.name
)
select name from gone union all select name from set`
)

// followTemplate changes the lanes that were made from a template as the template has been changed in this transaction.
func followTemplate(ctx context.Context, s *store.Store, tx pgx.Tx, name string) error {
	if !job.IsLaneTemplate(name) {
		return nil
	}
	for _, sql := range []string{followSettingsSQL, followLimitsSQL} {
		if _, err := tx.Exec(ctx, s.In(sql), name); err != nil {
			return err
		}
	}
	return nil
}

// idleLanesSQL marks lanes that were made from a template and have no due or running jobs, and removes the mark from those that have some. It deletes those
// that are still empty a time after they were marked ($1, in milliseconds), with their limits. It skips lanes that are
// drained, or held by a limit until a later time, because another lane of this name would be open. A promotion that is making a job pending has locked the
// row, or has removed the mark. Plan: one pass over lanes; a probe each of live_for_claim, parked_of_lane and limits_pkey for each lane with a template;
// primary keys.
const idleLanesSQL = `
with seen as materialized (
	select n.name, not exists (select from trapeze.live l where l.lane = n.name)
		and not exists (select from trapeze.parked p where p.lane = n.name and p.why in ('subject', 'key'))
		and not n.drained and not exists (select from trapeze.limits x where x.scope = 'lane' and x.name = n.name and greatest(x.next_start, x.held_until) > now()) as empty
	from trapeze.lanes n where n.template is not null
), hit as materialized (
	select n.name, s.empty, n.idle_since < t.until and s.empty as old
	from seen s join trapeze.lanes n on n.name = s.name cross join (select now() - $1::bigint * interval '1 millisecond' as until) t
	where n.template is not null and ((n.idle_since is not null) <> s.empty or n.idle_since < t.until and s.empty)
	order by n.name for update of n skip locked
), marked as (
	update trapeze.lanes n set idle_since = case when h.empty then now() end from hit h where n.name = h.name and h.old is not true
), unlimited as (
	delete from trapeze.limits x using hit h where h.old and x.scope = 'lane' and x.name = h.name
), gone as (
	delete from trapeze.lanes n using hit h where h.old and n.name = h.name returning n.name
)
select count(*)::int from gone`

// FollowTemplates corrects lanes that differ from their templates. It deletes lanes that were made from a template and have been marked as idle for the
// given time, and marks others. It returns the number of deleted lanes. Several pods can safely call it concurrently.
func FollowTemplates(ctx context.Context, s *store.Store, idle time.Duration) (deleted int, err error) {
	for _, sql := range []string{followSettingsSQL, followLimitsSQL} {
		if _, err := view.Rows(ctx, s, "compare lanes with their templates", pgx.RowTo[string], sql, nil); err != nil {
			return 0, err
		}
	}
	return view.Row(ctx, s, "delete idle lanes", pgx.RowTo[int], idleLanesSQL, idle.Milliseconds())
}
