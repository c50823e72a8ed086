package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A lane's rate limits how many of its jobs start per interval, on all pods together. A pod takes starts before a claim, no more than it has free
// slots, and gives back those that the claim did not need. So a start is taken at most one claim earlier than the job starts.

// takeStartsSQL takes starts of lanes that have a rate, with the generic cell rate algorithm: the next start's time moves on by one emission interval
// for each start, and may be at most burst - 1 intervals in the future. It returns how many starts it took, and when the next one is free. A lane that is
// held has none, with a rate or without one. Rows are locked in the order of their names. Plan: limits_pkey, one row per lane.
var takeStartsSQL = newStatement(`
with held as materialized (
	select x.name, x.rate, x.burst, x.per / x.rate as step, x.next_start, x.held_until, w.want from unnest(@lanes::text[], @wants::int[]) as w(lane, want)
	join trapeze.limits x on x.scope = 'lane' and x.name = w.lane and x.key = '' order by x.name for update of x
), counted as materialized (
	select h.*, t.now, t.base, case when h.held_until > t.now then 0 when h.rate is null then h.want
		else greatest(0, least(h.want, h.burst - ceil(extract(epoch from t.base - t.now) / extract(epoch from h.step))::int)) end as taken
	from held h cross join lateral (select c.now, greatest(h.next_start, c.now) as base from (select clock_timestamp() as now offset 0) c) t
), moved as (
	update trapeze.limits x set next_start = c.base + c.taken * c.step from counted c where x.scope = 'lane' and x.name = c.name and x.key = '' and c.taken * c.rate > 0
)
select name, taken, greatest(0, extract(epoch from held_until - now), extract(epoch from base - now + (taken - burst + 1) * step))::float8 from counted`)

// giveStartsSQL gives back starts that were not needed. Plan: limits_pkey, one row per lane.
var giveStartsSQL = newStatement(`
with held as materialized (
	select x.name, w.n from unnest(@lanes::text[], @numbers::int[]) as w(lane, n)
	join trapeze.limits x on x.scope = 'lane' and x.name = w.lane and x.key = '' order by x.name for update of x
)
update trapeze.limits x set next_start = x.next_start - h.n * (x.per / x.rate) from held h where x.scope = 'lane' and x.name = h.name and x.key = ''
	and x.rate > 0 returning x.name`)

// holdLaneSQL closes a lane until a moment, regardless of its rate. Plan: limits_pkey, one row.
//
// holdKeySQL gives a key no places in a lane until a moment, and takes them from its pending jobs. Plan: limits_pkey, one row; live_lane_places, the key's
// rows.
var (
	holdLaneSQL = newStatement(`
insert into trapeze.limits as x (scope, name, key, held_until) values ('lane', @lane, '', now() + @wait::bigint * interval '1 microsecond')
on conflict (scope, name, key) do update set held_until = greatest(x.held_until, excluded.held_until)`)
	holdKeySQL = newStatement(`
with kept as (
	insert into trapeze.limits as x (scope, name, key, held_until) values ('lane', @lane, @key, now() + @wait::bigint * interval '1 microsecond')
	on conflict (scope, name, key) do update set held_until = greatest(x.held_until, excluded.held_until)
), held as materialized (
	select l.id from trapeze.live l where l.key = @key and l.lane = @lane and l.lane_place is not null and l.state = 'pending' and not `, KeepsSubject("l"), ` order by l.id for update of l skip locked
), gone as (
	delete from trapeze.live l using held h where l.id = any(array[h.id]) returning l.*
), back as (
	insert into trapeze.parked (why, run_after, `, ParkedColumns, `) select 'key', coalesce(due_at, ready_at), `, ParkedColumns, ` from gone
), `, ReleaseGuards, `
select `, LinesOf("gone"), `::text`)
)

// HoldLane starts no job of a lane for a while, on any pod.
func HoldLane(ctx context.Context, s *Store, lane string, wait time.Duration) error {
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := do(ctx, s, tx, holdLaneSQL, args{{"lane", lane}, {"wait", wait.Microseconds()}}); err != nil {
			return err
		}
		return s.NotifySettings(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("hold lane %q: %w", lane, err)
	}
	return nil
}

// HoldKey starts no job of a key in a lane for a while, on any pod, except for those that are being claimed. The caller calls [Store.AdmitNext] for the
// key when it is over.
func HoldKey(ctx context.Context, s *Store, lane, key string, wait time.Duration) error {
	if _, err := run(ctx, s, pgx.RowTo[string], holdKeySQL, args{{"lane", lane}, {"key", key}, {"wait", wait.Microseconds()}}); err != nil {
		return fmt.Errorf("hold key %q in lane %q: %w", key, lane, err)
	}
	return nil
}

// Starts is a number of jobs that may start in a lane.
type Starts struct {
	N    int
	Next time.Duration // until the next one is free
}

// TakeStarts takes up to the wanted number of starts in each lane that has a rate. A lane without one is missing from the result.
func TakeStarts(ctx context.Context, s *Store, wants []Want) (map[string]Starts, error) {
	lanes, numbers := make([]string, len(wants)), make([]int32, len(wants))
	for i, w := range wants {
		lanes[i], numbers[i] = w.Lane, int4(w.N)
	}
	type row struct {
		Lane  string
		Taken int
		Next  float64 // seconds
	}
	found, err := run(ctx, s, pgx.RowToStructByPos[row], takeStartsSQL, args{{"lanes", lanes}, {"wants", numbers}})
	if err != nil {
		return nil, fmt.Errorf("take starts of %d lanes: %w", len(wants), err)
	}
	starts := make(map[string]Starts, len(found))
	for _, r := range found {
		starts[r.Lane] = Starts{N: r.Taken, Next: time.Duration(r.Next * float64(time.Second))}
	}
	return starts, nil
}

// GiveStarts gives back starts, by lane.
func GiveStarts(ctx context.Context, s *Store, unused map[string]int) error {
	lanes, numbers := make([]string, 0, len(unused)), make([]int32, 0, len(unused))
	for lane, n := range unused {
		lanes, numbers = append(lanes, lane), append(numbers, int4(n))
	}
	if _, err := run(ctx, s, pgx.RowTo[string], giveStartsSQL, args{{"lanes", lanes}, {"numbers", numbers}}); err != nil {
		return fmt.Errorf("give back starts of %d lanes: %w", len(unused), err)
	}
	return nil
}
