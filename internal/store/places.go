package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A job with a key is in live only while it holds a place: a number that is unique among the jobs of its key in its lane. If its kind has a limit
// per key, it also holds a number that is unique among the jobs of its key and kind. The numbers are columns of its row in live, so whatever removes the
// row frees them. A place is a number up to a limit:
//   - the limit of the key or of all keys in the lane, or of the kind, if there is one;
//   - the window of the lane, which is four times as many jobs as can run at a time. A key with more jobs waits with the rest of them, and the jobs of
//     other keys come before those: a job's position in its lane begins when it gets its places.
//
// One statement gives places: [Store.AdmitKeys]. All others park a job with a key that has none. Only a next step takes over its parent's.

// Line names the jobs that wait for each other: those of one kind and subject, or those of one key.
type Line struct{ Kind, Subject, Key string }

// Lines returns the lines of a job: none, one or two.
func Lines(kind, subject, key string) (lines []Line) {
	if subject != "" {
		lines = append(lines, Line{Kind: kind, Subject: subject})
	}
	if key != "" {
		lines = append(lines, Line{Key: key})
	}
	return lines
}

// Lines returns the lines of the job.
func (c *Claimed) Lines() []Line { return Lines(c.Kind, c.Subject, c.Key) }

// Lines returns the lines of the job.
func (n *NewJob) Lines() []Line { return Lines(n.Kind, n.Subject, n.Key) }

// LinesOf lists the lines of the jobs in a CTE as JSON, for a result of type []Line.
func LinesOf(cte string) string {
	return `coalesce((select json_agg(json_build_object('Kind', kind, 'Subject', subject, 'Key', key) order by kind, subject, key) from (
		select kind, subject, '' as key from ` + cte + ` where subject <> '' union select '', '', key from ` + cte + ` where key is not null) w), '[]')`
}

// laneSlots and kindSlots are the limits for the key of row w, and null if there is none. Plan: limits_pkey, kinds_pkey.
const (
	laneSlots = `(select x.slots from trapeze.limits x where x.scope = 'lane' and x.name = w.lane and x.key in (w.key, '*') and x.slots > 0
		order by x.key = '*' limit 1)`
	kindSlots = `coalesce((select x.slots from trapeze.limits x where x.scope = 'kind' and x.name = w.kind and x.key in (w.key, '*') and x.slots > 0
		order by x.key = '*' limit 1), (select n.per_key from trapeze.kinds n where n.kind = w.kind))`
	// laneWindow is the number of jobs of the key of row w that may be live if there is no limit.
	laneWindow = `coalesce((select x.weight from trapeze.limits x where x.scope = 'lane' and x.name = w.lane and x.key in (w.key, '*') and x.weight > 0
		order by x.key = '*' limit 1), 1)
		* greatest(20, 4 * least((select n.slots from trapeze.lanes n where n.name = w.lane), (select sum(p.slots) from trapeze.pods p where p.closed_at is null)))::int`
)

// keepsPlaces is the condition that the next step in row w keeps the places that its parent had in the same lane and kind. They must be within the
// limits, which may have been lowered.
const keepsPlaces = `case when w.had_lane_place is not null then w.had_lane_place <= coalesce(` + laneSlots + `, w.had_lane_place)
			and coalesce(w.had_kind_place <= ` + kindSlots + `, ` + kindSlots + ` is null) end`

// freePlaces numbers the free places of each group of rows in a CTE. has is the number of the group's jobs in live, of which taken selects the numbers.
func freePlaces(cte, group, limit, has, taken string) string {
	return `select n.*, p.place, row_number() over (partition by ` + group + ` order by p.place) as no from (
		select ` + group + `, max(` + limit + `) as most, max(` + has + `) + count(*)::int as numbers from ` + cte + ` where ` + limit + ` is not null group by ` + group + `
	) n cross join lateral (select generate_series(1, least(n.most, n.numbers)) as place except ` + taken + `) p`
}

// admitKeysSQL makes parked jobs of keys pending, as far as there are places, the most urgent ones first. It reads the first jobs of each lane and kind
// of a key. A job whose subject is taken waits for that instead. Two admissions at the same moment can choose the same place: the index lets only one
// have it, and the other one returns the key again. Places are taken in the order of their keys. An admission that loses a subject to another
// transaction is rolled back and sent again. Plan: per key, lane and kind, one probe of parked_for_key, of live_lane_places and live_kind_places for the key's
// rows, whose number is limited; primary keys.
var admitKeysSQL = newStatement(`
with recursive groups as (
	select w.key, p.lane, p.kind from unnest(@keys::text[]) as w(key) cross join lateral (select p.lane, p.kind from trapeze.parked p
		where p.why = 'key' and p.key = w.key order by p.key, p.lane, p.kind limit 1) p
	union all
	select g.key, p.lane, p.kind from groups g cross join lateral (select p.lane, p.kind from trapeze.parked p
		where p.why = 'key' and p.key = g.key and (p.lane, p.kind) > (g.lane, g.kind) order by p.key, p.lane, p.kind limit 1) p
), limited as materialized (
	select w.*, least(`, laneSlots, `, `, laneWindow, `) as lane_most, `, kindSlots, ` as kind_most,
		(select count(*)::int from trapeze.live l where l.key = w.key and l.lane = w.lane and l.lane_place is not null) as in_lane,
		(select count(*)::int from trapeze.live l where l.key = w.key and l.kind = w.kind and l.kind_place is not null) as in_kind,
		coalesce((select n.enabled and not n.drained from trapeze.lanes n where n.name = w.lane), false) as opens
	from groups w
), picked as materialized (
	select g.*, p.* from limited g cross join lateral (
		select p.id, p.subject, p.priority, p.run_after from trapeze.parked p
		where p.why = 'key' and p.key = g.key and p.lane = g.lane and p.kind = g.kind
		order by p.key, p.lane, p.kind, p.priority desc, p.run_after, p.id
		limit greatest(0, least(g.lane_most - g.in_lane, g.kind_most - g.in_kind)) for update skip locked
	) p where g.opens or g.kind_most is null
), may as materialized (
	select w.*, w.subject = '' or w.holds or `, guardFree, ` as free,
		row_number() over (partition by w.key, w.kind order by (-w.priority), w.run_after, w.id) as kind_no,
		row_number() over (partition by w.kind, w.subject order by (-w.priority), w.run_after, w.id) as subject_no from (select p.*, `, holdsGuard("p"), ` as holds from picked p offset 0) w
), fits as materialized (
	select w.*, row_number() over (partition by w.key, w.lane order by (-w.priority), w.run_after, w.id) as lane_no
	from may w where w.free and (w.subject = '' or w.holds or w.subject_no = 1) and coalesce(w.kind_no <= w.kind_most - w.in_kind, true)
), lane_places as materialized (
	`, freePlaces("fits", "key, lane", "lane_most", "in_lane", "select l.lane_place from trapeze.live l where l.key = n.key and l.lane = n.lane and l.lane_place is not null"), `
), kind_places as materialized (
	`, freePlaces("fits", "key, kind", "kind_most", "in_kind", "select l.kind_place from trapeze.live l where l.key = n.key and l.kind = n.kind and l.kind_place is not null"), `
), admitted as (
	insert into trapeze.live (ready_at, due_at, state, lane_place, kind_place, `, parkedColumns, `)
	select now(), p.run_after, 'pending', f.lane_place, f.kind_place, `, "p."+strings.ReplaceAll(parkedColumns, ", ", ", p."), `
	from (select f.id, a.place as lane_place, k.place as kind_place from fits f
			join lane_places a on a.key = f.key and a.lane = f.lane and a.no = f.lane_no
			left join kind_places k on k.key = f.key and k.kind = f.kind and k.no = f.kind_no
		where f.kind_most is null or k.place is not null order by a.key, a.lane, a.place offset 0) f
	join trapeze.parked p on p.id = f.id
	on conflict do nothing returning id
), moved as (
	delete from trapeze.parked p using admitted a where p.id = a.id
), `, takeGuards("(select f.* from fits f join admitted a on a.id = f.id)"), `, blocked as (
	update trapeze.parked p set why = 'subject' from may m where not m.free and p.id = m.id
)
select m.key, m.subject, m.free, case when a.id is not null and m.subject <> '' and not m.holds and not exists (select from guarded g where g.job_id = m.id)
	then trapeze.lost_race() else a.id is not null end, m.kind, m.lane, m.priority, now()
from may m left join admitted a on a.id = m.id`)

// AdmitKeys makes jobs of keys pending, as far as there are places. Its result lists as lines to be admitted again the keys with jobs for which there
// may still be a place, and the subjects for which jobs now wait.
func (s *Store) AdmitKeys(ctx context.Context, keys []string) (a Admitted, err error) {
	if len(keys) == 0 {
		return a, nil
	}
	type row struct {
		Key, Subject   string
		Free, Admitted bool
		AdmittedJob
	}
	found, err := run(ctx, s, pgx.RowToStructByPos[row], admitKeysSQL, args{{"keys", keys}})
	if err != nil {
		return a, fmt.Errorf("admit the jobs of %d keys: %w", len(keys), err)
	}
	again := map[Line]bool{}
	for _, r := range found {
		switch {
		case r.Admitted:
			a.Jobs = append(a.Jobs, r.AdmittedJob)
			continue
		case !r.Free:
			again[Line{Kind: r.Kind, Subject: r.Subject}] = true
		}
		again[Line{Key: r.Key}] = true
	}
	a.Again = slices.Collect(maps.Keys(again))
	return a, nil
}
