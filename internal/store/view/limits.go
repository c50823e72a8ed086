package view

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// keysInUseSQL lists the keys with the most waiting jobs, in each lane and of each kind. It examines the first $4 of them, in order of their keys. If there are
// more, it adds those that are the most frequent in a sample of 1000 pages of parked, so that it finds the keys with many jobs. Plan: parked_for_key, one
// probe per key, lane and kind, and up to $6 entries of each; a Sample Scan of parked that runs only if there are more; live_lane_places and primary keys
// for $5 rows.
var keysInUseSQL = `
with recursive groups as (
	(select p.key, p.lane, p.kind, 1 as no from trapeze.parked p where p.why = 'key' and p.key >= coalesce($3::text, '') order by p.key, p.lane, p.kind limit 1)
	union all
	select p.key, p.lane, p.kind, g.no + 1 from groups g cross join lateral (select p.key, p.lane, p.kind from trapeze.parked p
		where p.why = 'key' and (p.key, p.lane, p.kind) > (g.key, g.lane, g.kind) order by p.key, p.lane, p.kind limit 1) p
	where g.no < $4::int and ($3::text is null or g.key = $3)
), sampled as materialized (
	select p.key, p.lane, p.kind from trapeze.parked p tablesample system (least(100, 1000.0 * 8192 * 100 / greatest(1, pg_relation_size('trapeze.parked'))))
	where p.why = 'key' and ` + keyChosen("p") + ` and $3::text is null and (select count(*) from groups) >= $4::int
	group by p.key, p.lane, p.kind order by count(*) desc limit $5::int
), counted as materialized (
	select w.key, w.lane, w.kind, c.waiting, c.oldest from (select key, lane, kind from groups union select key, lane, kind from sampled) w
	cross join lateral (select count(*)::int as waiting, min(f.run_after) as oldest from (select p.run_after from trapeze.parked p
		where ` + store.WaitsFor("w") + ` order by p.key, p.lane, p.kind, p.priority desc, p.run_after, p.id limit $6::int) f) c
	where ` + keyChosen("w") + ` and ($3::text is null or w.key = $3)
	order by c.waiting desc, w.key, w.lane, w.kind limit $5::int
), limited as materialized (
	select w.*, u.* from counted w cross join lateral (` + store.KeyUse + `) u
)
select coalesce(w.key, ''), coalesce(w.lane, ''), coalesce(w.kind, ''), coalesce(w.waiting, 0), coalesce(w.oldest, now()),
	coalesce(w.in_lane, 0), coalesce(least(w.lane_slots, w.lane_window), 0), coalesce(w.in_kind, 0), w.kind_slots,
	case when w.in_kind >= w.kind_slots then 'kind' when w.in_lane >= w.lane_slots and w.lane_slots <= w.lane_window then 'lane'
		when w.in_lane >= w.lane_window then 'window' else '' end, g.complete
from (select count(*) < $4::int as complete from groups) g left join limited w on true order by w.waiting desc, w.key, w.lane, w.kind`

// keyChosen is the condition that a row is in lane $1 and of kind $2; null matches everything.
func keyChosen(row string) string {
	return `($1::text is null or ` + row + `.lane = $1) and ($2::text is null or ` + row + `.kind = $2)`
}

// Bounds of [KeysInUse].
const (
	keysExamined = 1000
	keysListed   = 100
)

// KeysInUse lists the keys that wait most, how many places each of them uses, and which limit binds. Empty arguments match everything. Its cost does not
// depend on the number of waiting jobs.
func KeysInUse(ctx context.Context, s *store.Store, lane, kind, key string) (use job.KeysInUse, err error) {
	type row struct {
		job.KeyUse
		Complete bool
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], keysInUseSQL, store.Some(lane), store.Some(kind), store.Some(key), keysExamined, keysListed, job.MaxKeyWaiting)
	use = job.KeysInUse{Keys: []job.KeyUse{}, Complete: true}
	for _, r := range found {
		if use.Complete = r.Complete; r.Key != "" {
			use.Keys = append(use.Keys, r.KeyUse)
		}
	}
	return use, text.Wrap(err, "list the keys that wait")
}

// uselessLimitsSQL lists the lanes that do not exist, and the kinds that no pod handles, although keys have limits for them. If there is no open pod, it lists
// no kinds. Plan: one pass over limits; lanes and pods are small tables.
const uselessLimitsSQL = `
select x.scope, x.name, x.key, x.n from (select scope, name, min(key) as key, count(*)::int as n from trapeze.limits group by scope, name) x
where case x.scope when 'lane' then not exists (select from trapeze.lanes n where n.name = x.name)
	else exists (select from trapeze.pods p where p.closed_at is null) and not exists (select from trapeze.pods p where p.closed_at is null and x.name = any(p.kinds)) end
order by x.scope, x.name limit 20`

// UselessLimits counts the limits for a lane that does not exist, or for a kind that no pod handles.
type UselessLimits struct {
	job.LimitOf     // the first of them
	Count       int // number of keys
}

// FindUselessLimits returns the first lanes and kinds with limits that have no effect.
func FindUselessLimits(ctx context.Context, s *store.Store) ([]UselessLimits, error) {
	return Rows(ctx, s, "find limits without effect", pgx.RowToStructByPos[UselessLimits], uselessLimitsSQL)
}
