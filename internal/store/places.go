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
// per key, it also holds a number that is unique among the jobs of its key and kind. The numbers are columns of its row in live, so any statement that removes the
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

// limitOf is a column of the limit of the key of row w, or else of each key, and null if neither is set. Plan: limits_pkey, two probes.
func limitOf(scope, name, column string) string {
	of := func(key string) string {
		return `(select x.` + column + ` from trapeze.limits x where x.scope = '` + scope + `' and x.name = ` + name + ` and x.key = ` + key + `)`
	}
	return of("w.key") + ", " + of("'*'")
}

// LaneSlots and KindSlots are the limits for the key of row w, and null if there is none. LaneWindow is the number of its jobs that may be live without a
// limit. Plan: limits_pkey, kinds_pkey, lanes_pkey; pods_open.
var (
	LaneSlots  = `coalesce(` + limitOf("lane", "w.lane", "slots") + `)`
	KindSlots  = `coalesce(` + limitOf("kind", "w.kind", "slots") + `, (select n.per_key from trapeze.kinds n where n.kind = w.kind))`
	LaneWindow = `coalesce(` + limitOf("lane", "w.lane", "weight") + `, 1)
		* greatest(20, 4 * least((select n.slots from trapeze.lanes n where n.name = w.lane), (select sum(p.slots) from trapeze.pods p where p.closed_at is null)))::int`
)

// handled is the condition that a pod handles the kind of a row, or that another engine runs its lane. Plan: pods_open, once; lanes_pkey.
func handled(row string) string {
	return `(` + row + `.kind = any(array(select unnest(p.kinds) from trapeze.pods p where p.closed_at is null))
			or coalesce((select n.engine <> 'postgres' from trapeze.lanes n where n.name = ` + row + `.lane), false))`
}

// keyHeld is true while no job of the key of row w may start in its lane; see [HoldKey]. Plan: limits_pkey.
const keyHeld = `coalesce((select x.held_until > now() from trapeze.limits x where x.scope = 'lane' and x.name = w.lane and x.key = w.key), false)`

// KeyUse selects what limits the key of row w: the limit and window of its lane, the limit of its kind, and the key's jobs in live in that lane and, if
// the kind has a limit, of that kind. A limit is null if there is none. Plan: limits_pkey, kinds_pkey, live_lane_places.
var KeyUse = `select u.*, cardinality(u.lane_taken) as in_lane, case when u.kind_slots is not null
		then (select count(*)::int from trapeze.live l where l.key = w.key and l.kind = w.kind and l.lane_place is not null) end as in_kind
	from (select ` + LaneSlots + ` as lane_slots, ` + LaneWindow + ` as lane_window, ` + KindSlots + ` as kind_slots,
		array(select l.lane_place from trapeze.live l where l.key = w.key and l.lane = w.lane and l.lane_place is not null) as lane_taken offset 0) u`

// keepsPlaces is the condition that the next step in row w keeps the places that its parent had in the same lane and kind. They must be within the
// limits, which may have been lowered, and the key must not be held.
var keepsPlaces = `not ` + keyHeld + ` and w.had_lane_place <= coalesce(` + LaneSlots + `, w.had_lane_place)
			and coalesce(w.had_kind_place <= ` + KindSlots + `, ` + KindSlots + ` is null)`

// WaitsFor is the condition that the parked row p waits for a place of the key, lane and kind of a row. No index but parked_for_key starts with the columns of
// the row comparisons: with equalities, the planner may read and sort all jobs of the lane in parked_of_lane, which is the smaller index.
func WaitsFor(row string) string {
	columns := `(` + row + `.key, ` + row + `.lane, ` + row + `.kind)`
	return `p.why = 'key' and (p.key, p.lane, p.kind) >= ` + columns + ` and (p.key, p.lane, p.kind) <= ` + columns
}

// freePlaces is the array of the free places among the first ones, up to a limit, of which live jobs already use some. taken selects the numbers of places
// that are not free: they can be above a limit that was lowered. Jobs older than a kind's limit have no number, but count.
func freePlaces(most, used, taken string) string {
	return `array(select generate_series(1, least(` + most + `, ` + used + ` + g.cap)) except select ` + taken + ` order by 1 limit greatest(0, least(g.cap, ` + most + ` - ` + used + `)))`
}

// admitKeysSQL makes parked jobs of keys pending, as far as there are places, the most urgent ones first. It reads the first jobs of each lane and kind
// of a key. A job whose subject is taken, or has a job that comes first, waits for that instead. Two admissions at the same moment can choose the same place: the index lets only one
// have it, and the other one returns the key again. So it does if there may be more jobs and places. Places are taken in the order of their keys. An
// admission that loses a subject to another transaction is rolled back and sent again. The row of a job is the one that was locked: an operator may have
// changed the job since the statement began.
//
// If there is no place for jobs, as many pending ones of the same lane, and kind if that has a limit, give back their places for the next call, if they are
// less urgent or no pod handles their kinds. So do those of the same kind in a closed lane. A job of a kind with a limit gets no place in a closed lane, and
// none gives up places in other lanes: such jobs could take turns with others without end.
//
// Plan: per key, lane and kind, one probe of parked_for_key, and an index scan of live_lane_places and live_kind_places for the places of the key, whose
// number is limited; primary keys. No join compares all jobs with all others: "is true" keeps the planner from joining the admitted jobs with those that
// were picked.
var admitKeysSQL = newStatement(`
with recursive lines as (
	select w.key, p.lane, p.kind from unnest(@keys::text[]) as w(key) cross join lateral (select p.lane, p.kind from trapeze.parked p
		where p.why = 'key' and p.key = w.key order by p.key, p.lane, p.kind limit 1) p
	union all
	select g.key, p.lane, p.kind from lines g cross join lateral (select p.lane, p.kind from trapeze.parked p
		where p.why = 'key' and p.key = g.key and (p.lane, p.kind) > (g.lane, g.kind) order by p.key, p.lane, p.kind limit 1) p
), limited as materialized (
	select w.*, case when `, keyHeld, ` then 0 else least(u.lane_slots, u.lane_window) end as lane_most, u.kind_slots as kind_most, u.in_lane, u.lane_taken, u.in_kind,
		greatest(1, @limit::int / (select count(*) from lines)::int) as cap,
		coalesce((select n.enabled and not n.drained from trapeze.lanes n where n.name = w.lane), false) as opens, `, handled("w"), ` as handled
	from lines w cross join lateral (`, KeyUse, `) u
), free as materialized (
	select g.key, g.lane, g.kind, g.kind_most, g.cap, g.opens, g.handled, `, freePlaces("g.lane_most", "g.in_lane", "unnest(g.lane_taken)"), ` as lane_free,
		case when g.kind_most is not null then `, freePlaces("g.kind_most", "g.in_kind", "l.kind_place from trapeze.live l where l.key = g.key and l.kind = g.kind and l.kind_place is not null"), ` end as kind_free
	from limited g where g.opens or g.kind_most is null
), picked as materialized (
	select g.*, p.* from free g cross join lateral (
		select p.id, p.subject, p.priority, p.run_after, p as job from trapeze.parked p
		where `, WaitsFor("g"), `
		order by p.key, p.lane, p.kind, p.priority desc, p.run_after, p.id limit least(cardinality(g.lane_free), cardinality(g.kind_free)) for update skip locked
	) p
), may as materialized (
	select w.*, w.subject = '' or w.holds or `, guardFree, ` and `, noneWaits("p.opens and ((-p.priority), p.run_after, p.id) < ((-w.priority), w.run_after, w.id)"), `
		and not `, duePrecedes("((-d.priority), d.run_after, d.id) < ((-w.priority), w.run_after, w.id)"), ` as free,
		row_number() over (partition by w.key, w.kind order by (-w.priority), w.run_after, w.id) as kind_no,
		row_number() over (partition by w.kind, w.subject order by (-w.priority), w.run_after, w.id) as subject_no from (select p.*, `, holdsGuard("p"), ` as holds from picked p offset 0) w
), fits as materialized (
	select w.*, row_number() over (partition by w.key, w.lane order by w.handled desc, (-w.priority), w.run_after, w.id) as lane_no
	from may w where w.free and (w.subject = '' or w.holds or w.subject_no = 1) and coalesce(w.kind_no <= cardinality(w.kind_free), true)
), admitted as (
	insert into trapeze.live (ready_at, due_at, state, lane_place, kind_place, `, ParkedColumns, `)
	select now(), f.run_after, 'pending', f.lane_place, f.kind_place, `, "(f.job)."+strings.ReplaceAll(ParkedColumns, ", ", ", (f.job)."), `
	from (select f.job, f.run_after, f.lane_free[f.lane_no] as lane_place, f.kind_free[f.kind_no] as kind_place from fits f
		where f.lane_no <= cardinality(f.lane_free) order by f.key, f.lane, f.lane_no offset 0) f
	on conflict do nothing returning id
), moved as (
	delete from trapeze.parked p using admitted a where p.id = a.id
), `, takeGuards("(select * from fits where (id in (select id from admitted)) is true)"), `, blocked as (
	update trapeze.parked p set why = 'subject' from may m where not m.free and p.id = m.id
), crowded as materialized (
	select g.*, array(select p.priority from trapeze.parked p where `, WaitsFor("g"), `
		order by p.key, p.lane, p.kind, p.priority desc, p.run_after, p.id limit g.cap) as urgent
	from free g where least(cardinality(g.lane_free), cardinality(g.kind_free)) = 0
), outranked as materialized (
	select distinct l.id from crowded g cross join lateral (
		select l.*, row_number() over (order by l.elsewhere desc, l.handled, l.priority, l.ready_at desc, l.id desc) as no from (
			select l.id, l.lane <> g.lane as elsewhere, `, handled("l"), ` as handled, l.priority, l.ready_at from trapeze.live l
			where l.key = g.key and l.lane_place is not null and l.state = 'pending'
				and case when cardinality(g.kind_free) = 0 then l.kind = g.kind and (l.lane = g.lane or cardinality(g.lane_free) > 0 and g.opens and not (
					select n.enabled and not n.drained from trapeze.lanes n where n.name = l.lane)) else l.lane = g.lane end
				and not `, KeepsSubject("l"), ` offset 0
		) l where l.elsewhere or (l.handled, l.priority) < (g.handled, g.urgent[1])
	) l where l.no <= cardinality(g.urgent) and (l.elsewhere or (l.handled, l.priority) < (g.handled, g.urgent[l.no]))
), held as materialized (
	select l.id from outranked o join trapeze.live l on l.id = any(array[o.id]) where l.state = 'pending' order by o.id for update of l skip locked
), gone as (
	delete from trapeze.live l using held h where l.id = any(array[h.id]) returning l.*
), back as (
	insert into trapeze.parked (why, run_after, `, ParkedColumns, `) select 'key', coalesce(due_at, ready_at), `, ParkedColumns, ` from gone
), `, ReleaseGuards, `
select key, subject, subject = '', false, true, kind, lane, priority, now() from gone
union all
select m.key, m.subject, m.free, case when m.subject <> '' and m.admitted and not m.holds and m.id not in (select job_id from guarded) then trapeze.lost_race() else m.admitted end,
	m.cap = cardinality(m.lane_free), m.kind, m.lane, m.priority, now()
from (select m.*, m.id in (select id from admitted) as admitted from may m offset 0) m`)

// admitLimit is the number of jobs that one statement admits if it admits several per key.
const admitLimit = 1000

// AdmitKeys makes jobs of keys pending, as far as there are places. Its result lists as lines to be admitted again the keys with jobs for which there
// may still be a place, and the subjects for which jobs now wait.
func (s *Store) AdmitKeys(ctx context.Context, keys []string) (a Admitted, err error) {
	if len(keys) == 0 {
		return a, nil
	}
	type row struct {
		Key, Subject   string
		Free, Admitted bool
		More           bool // the number of places was cut off
		AdmittedJob
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	found, err := run(ctx, s, pgx.RowToStructByPos[row], admitKeysSQL, args{{"keys", keys}, {"limit", admitLimit}})
	if err != nil {
		return a, fmt.Errorf("admit the jobs of %d keys: %w", len(keys), err)
	}
	again := map[Line]bool{}
	for _, r := range found {
		if r.Admitted {
			a.Jobs = append(a.Jobs, r.AdmittedJob)
		}
		if !r.Admitted || r.More {
			again[Line{Key: r.Key}] = true
		}
		if !r.Free {
			again[Line{Kind: r.Kind, Subject: r.Subject}] = true
		}
	}
	a.Again = slices.Collect(maps.Keys(again))
	return a, nil
}
