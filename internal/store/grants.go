package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// settleSlotsSQL changes the number of slots that a pod holds in limited lanes to the number that it requests. Slots are granted as long as
// the lane has free ones, and returned slots become free immediately. A request states the number to hold rather than a difference, so that
// it can be repeated after a lost reply.
//
// The row lock of a lane serializes the pods, and the lane's granted column is the sum that is compared with the limit. A sum over
// slot_grants would come from a snapshot taken before the wait for the lock. For the same reason, the pod's own row is changed by an
// upsert, which sees the row's latest version; the "was" column keeps the old number so that the sum can be adjusted. A pod's requests are
// numbered, so that a request that arrives late on an abandoned connection has no effect after a newer one.
//
// More slots are granted only if jobs that this pod can run are waiting, and one slot is reserved for each pod that has been waiting
// longer. Running jobs are granted slots even beyond the limit, because lowering a limit does not stop running jobs. A pod counts as
// waiting if it holds fewer slots than its share and fewer than it wants. Waiting pods are served in order. Plan: primary keys;
// live_for_claim up to its first pending row of a handled kind.
var settleSlotsSQL = newStatement(`
with asked as materialized (
	select * from unnest(@lanes::text[], @targets::int[], @wishes::int[], @used::int[]) as a(lane, target, wish, used)
	where exists (select from trapeze.pods where id = @pod and ` + stillOpen + `)
), locked as materialized (
	select l.name, l.slots, l.granted, a.target, a.wish, a.used from trapeze.lanes l join asked a on a.lane = l.name
	where l.slots is not null
	order by l.name for update of l
), room as materialized (
	select k.*, k.slots / p.n as share, q.others, q.waited, w.work, s.spare,
		case when w.work then greatest(s.spare - q.before, 0) else 0 end as free
	from locked k
	cross join lateral (select k.slots - k.granted as spare) s
	cross join (select greatest(count(*), 1)::int as n from trapeze.pods where closed_at is null and not draining and not drained and slots > 0) p
	cross join lateral (select k.wish > 0 and exists (select from trapeze.live j
		where j.lane = k.name and j.state = 'pending' and j.kind = any(@kinds::text[])) as work) w
	cross join lateral (
		select count(g.pod) > 0 as others, m.wants_since is not null as waited,
			count(g.pod) filter (where g.wants_since < coalesce(m.wants_since, now()))::int as before
		from (select (select g.wants_since from trapeze.slot_grants g where g.lane = k.name and g.pod = @pod)) m(wants_since)
		left join (trapeze.slot_grants g join trapeze.pods o on o.id = g.pod and o.closed_at is null)
			on g.lane = k.name and g.pod <> @pod and g.wants_since is not null
		group by m.wants_since
	) q
), held as (
	insert into trapeze.slot_grants as g (lane, pod, slots, asked, wants_since)
	select r.name, @pod, n.slots, @asked::bigint, case when r.work and n.slots < least(r.wish, greatest(r.share, 1)) then now() end
	from room r cross join lateral (select greatest(least(r.target, r.free), r.used) as slots) n
	on conflict (lane, pod) do update set (was, slots, asked, wants_since) = (
		select g.slots, n.slots, @asked,
			case when r.work and n.slots < least(r.wish, greatest(r.share, 1)) then coalesce(g.wants_since, now()) end
		from room r cross join lateral (select case when r.target <= g.slots then r.target
			else greatest(least(r.target, g.slots + r.free), r.used) end as slots) n
		where r.name = g.lane)
	where g.asked < @asked
	returning g.lane, g.slots, g.was, g.wants_since
), settled as (
	update trapeze.lanes l set granted = l.granted + h.slots - h.was from held h where l.name = h.lane
)
select h.lane, h.slots, r.share, r.others, h.slots - h.was > r.spare,
	coalesce(h.wants_since = now(), r.waited) or h.was > h.slots and exists (select from trapeze.live j where j.lane = h.lane and j.state = 'pending'),
	r.work
from held h join room r on r.name = h.lane`)

// Slots is the response to a request for one limited lane.
type Slots struct {
	Lane       string
	Held       int  // number of jobs that this pod may run
	Share      int  // number of slots that the pod may keep while others wait: the lane's slots divided by the number of open pods; 0 means less than one slot each
	OthersWait bool // another pod is waiting for its share
	Over       bool // all pods together hold more slots than the lane has, because its limit is new or was lowered
	Wake       bool // other pods must be woken, because jobs are waiting for slots that this pod has returned, or because this pod is waiting for slots that they hold
	Work       bool // jobs that this pod can run are waiting in the lane
}

// Ask is a pod's request for slots in a limited lane.
type Ask struct {
	Lane   string
	Target int // number of slots to hold now, at least Used
	Wish   int // number of slots to hold if no other pod were waiting
	Used   int // number of running jobs
}

// lanesWithWorkSQL finds lanes with pending jobs of the given kinds. It searches spans of lanes that are adjacent both in the index and in
// a heartbeat, so that it need not probe thousands of lanes one by one. Each step of the walk finds the next lane with such a job, or ends
// a span. Plan: for each step, an Index Scan on live_for_claim up to the first pending row of these kinds.
var lanesWithWorkSQL = newStatement(`
with recursive walk (span, lane, found, n) as (
	select 1, (@afters::text[])[1], false, 0
	union all
	select w.span + (f.lane is null)::int, coalesce(f.lane, (@afters::text[])[w.span + 1]), f.lane is not null, w.n + (f.lane is not null)::int
	from walk w left join lateral (
		select j.lane from trapeze.live j
		where j.lane > w.lane and j.lane <= (@lasts::text[])[w.span] and j.state = 'pending' and j.kind = any(@kinds::text[])
		order by j.lane limit 1
	) f on true
	where w.n < @most and w.span <= cardinality(@lasts::text[])
)
select lane from walk where found order by n`)

// Span is a series of lanes that are adjacent in the order of a heartbeat: those after the lane After, up to and including the lane Last.
// An empty After means the beginning of that order.
type Span struct{ After, Last string }

// LanesWithWork finds lanes with waiting jobs of these kinds. It searches the spans in order and returns up to most lanes. It may also
// return a lane that has been added within a span since the heartbeat.
func LanesWithWork(ctx context.Context, s *Store, spans []Span, kinds []string, most int) ([]string, error) {
	afters, lasts := make([]string, len(spans)), make([]string, len(spans))
	for i, span := range spans {
		afters[i], lasts[i] = span.After, span.Last
	}
	lanes, err := run(ctx, s, pgx.RowTo[string], lanesWithWorkSQL, args{{"afters", afters}, {"lasts", lasts}, {"kinds", kinds}, {"most", most}})
	if err != nil {
		return nil, fmt.Errorf("find limited lanes with jobs: %w", err)
	}
	return lanes, nil
}

// streamShift is the number of low bits in a request number, which count a process's requests. The higher bits hold the stream number.
const streamShift = 40

// SettleSlots requests or returns slots in limited lanes, and reports the slots that the pod then holds. A lane that is missing from the
// response was deleted or is no longer limited. A closed pod holds no slots. After an error, the call can be repeated, but not concurrently
// with another call for the same pod.
func SettleSlots(ctx context.Context, s *Store, podID string, asks []Ask, kinds []string) ([]Slots, error) {
	lanes, targets := make([]string, len(asks)), make([]int32, len(asks))
	wishes, used := make([]int32, len(asks)), make([]int32, len(asks))
	for i, a := range asks {
		lanes[i], targets[i], wishes[i], used[i] = a.Lane, int4(a.Target), int4(a.Wish), int4(a.Used)
	}
	held, err := run(ctx, s, pgx.RowToStructByPos[Slots], settleSlotsSQL, args{{"pod", podID}, {"lanes", lanes}, {"targets", targets}, {"wishes", wishes}, {"used", used}, {"kinds", kinds}, {"asked", s.stream<<streamShift + s.asked.Add(1)}})
	if err != nil {
		return nil, fmt.Errorf("settle slots: %w", err)
	}
	return held, nil
}

// voidSlotsSQL revokes all slots held by closed pods. It locks the lanes first, as every other statement does. A closed pod's statement
// that was still in flight may grant the pod slots afterwards; the pod's next recovery revokes them. Plan: slot_grants_of_pod.
var voidSlotsSQL = newStatement(`
with locked as materialized (
	select l.name from trapeze.lanes l
	where l.name in (select g.lane from trapeze.slot_grants g where g.pod = any(@pods::uuid[]))
	order by l.name for update
), gone as (
	delete from trapeze.slot_grants g using locked k
	where g.lane = k.name and g.pod = any(@pods::uuid[])
		and exists (select from trapeze.pods p where p.id = g.pod and p.closed_at is not null)
	returning g.lane, g.slots
)
update trapeze.lanes l set granted = greatest(l.granted - g.slots, 0)
from (select lane, sum(slots)::int as slots from gone group by lane) g where l.name = g.lane
returning l.name`)

// VoidSlots revokes the slots of closed pods whose jobs have been recovered, and returns their lanes.
func VoidSlots(ctx context.Context, s *Store, podIDs []string) ([]string, error) {
	lanes, err := run(ctx, s, pgx.RowTo[string], voidSlotsSQL, args{{"pods", podIDs}})
	if err != nil {
		return nil, fmt.Errorf("revoke slots: %w", err)
	}
	return lanes, nil
}
