package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// settleSlotsSQL changes the number of slots that a pod holds in limited lanes. A request states how many slots the pod keeps and how many
// it wishes for, rather than a difference, so that it can be repeated after a lost reply. If jobs that this pod can run are waiting, it is
// granted free slots, except for those that the pods before it in the lane's queue need. If it still has fewer than it wishes for, it enters
// the queue. Slots that remain free are handed over to the other pods in the queue, which are notified. Pods with less than their share
// come first, then those that have waited longest. Running jobs are granted slots even beyond the limit, because lowering a limit does not
// stop running jobs.
//
// The row lock of a lane serializes the pods, and the lane's granted column is the sum that is compared with the limit. A sum over
// slot_grants would come from a snapshot taken before the wait for the lock. For the same reason, the pod's own row is changed by an
// upsert, which sees the row's latest version; the "was" column keeps the old number so that the sum can be adjusted. A queue that is read
// from an old snapshot may lack the latest pod or have one too many, but never makes the sum wrong: if slots remain free although jobs are
// waiting, all pods are notified. A pod's requests are numbered, so that a request that arrives late on an abandoned connection has no
// effect after a newer one. Plan: primary keys; live_for_claim up to its first pending row, or the first of a handled kind.
var settleSlotsSQL = newStatement(`
with asked as materialized (
	select * from unnest(@lanes::text[], @keeps::int[], @wishes::int[], @used::int[]) as a(lane, keep, wish, used)
	where exists (select from trapeze.pods where id = @pod and ` + stillOpen + `)
), locked as materialized (
	select l.name, l.slots, l.granted, a.keep, a.wish, a.used from trapeze.lanes l join asked a on a.lane = l.name
	where l.slots is not null
	order by l.name for update of l
), room as materialized (
	select k.name, k.slots, k.granted, k.keep, k.used, case when w.work then k.wish else k.used end as wish, w.work, k.slots >= p.n as divides,
		greatest(k.slots / p.n, 1) as share, case when m.slots <= k.keep then m.since end as since, coalesce(least(m.slots, k.keep), 0) as had
	from locked k
	cross join (select greatest(count(*), 1)::int as n from trapeze.pods where closed_at is null and not draining and not drained and slots > 0) p
	cross join lateral (select k.wish > 0 and exists (select from trapeze.live j
		where j.lane = k.name and j.state = 'pending' and j.kind = any(@kinds::text[])) as work) w
	left join lateral (select g.slots, g.wants_since as since from trapeze.slot_grants g where g.lane = k.name and g.pod = @pod) m on true
), queue as materialized (
	select g.lane, g.pod, g.wish - g.slots as needs, g.slots >= r.share as fair, g.wants_since as since,
		(g.slots >= r.share, g.wants_since) < (r.had >= r.share, coalesce(r.since, now())) as before
	from room r join trapeze.slot_grants g on g.lane = r.name and g.pod <> @pod and g.wants_since is not null
	join trapeze.pods o on o.id = g.pod and o.closed_at is null
), ahead as materialized (
	select r.*, r.slots - r.granted - (select coalesce(sum(q.needs), 0) from queue q where q.lane = r.name and q.before) as free from room r
), held as (
	insert into trapeze.slot_grants as g (lane, pod, slots, asked, wish, wants_since)
	select a.name, @pod, n.slots, @asked::bigint, a.wish, case when n.slots < a.wish then now() end
	from ahead a cross join lateral ` + settled(`0`) + ` n
	on conflict (lane, pod) do update set (was, slots, asked, wish, wants_since) = (
		select g.slots, n.slots, @asked, a.wish, case when n.slots < a.wish then coalesce(a.since, now()) end
		from ahead a cross join lateral ` + settled(`g.slots`) + ` n
		where a.name = g.lane)
	where g.asked < @asked
	returning g.lane, g.slots, g.slots - g.was as gained, g.wants_since
), left_over as materialized (
	select r.*, h.slots as now, h.gained, h.wants_since, r.slots - r.granted - h.gained as free, h.gained > r.slots - r.granted as over,
		r.slots - r.granted > h.gained and exists (select from trapeze.live j where j.lane = r.name and j.state = 'pending') as pending
	from held h join room r on r.name = h.lane
), given as (
	update trapeze.slot_grants g set was = g.slots, slots = g.slots + t.gets, wants_since = case when g.slots + t.gets < g.wish then g.wants_since end
	from (select q.lane, q.pod, least(q.needs, f.free - sum(q.needs) over (partition by q.lane order by q.fair, q.since, q.pod) + q.needs)::int as gets
		from queue q join left_over f on f.name = q.lane and f.pending) t
	where t.gets > 0 and g.lane = t.lane and g.pod = t.pod
	returning g.lane, g.pod, g.slots - g.was as gained
), totals as materialized (
	select f.name, f.gained + coalesce(sum(v.gained), 0)::int as gained from left_over f left join given v on v.lane = f.name group by f.name, f.gained
), settled as (
	update trapeze.lanes l set granted = l.granted + t.gained from totals t where l.name = t.name and t.gained <> 0
), notified as materialized (
	select count(pg_notify(@channel, n.payload)) from (
		select ` + slotsFor("v.pod::text", "v.lane") + ` from given v
		union all
		select ` + slotsFor("g.pod::text", "f.name") + ` from left_over f join trapeze.slot_grants g on g.lane = f.name and g.pod <> @pod
			and g.slots > case when f.divides then f.share else 0 end
		where f.wants_since = now() and f.now < f.share and not exists (select from queue q where q.lane = f.name and not q.fair)
		union all
		select ` + slotsFor("'*'", "f.name") + ` from left_over f join totals t on t.name = f.name
		where f.pending and f.gained < 0 and t.gained < f.slots - f.granted
	) n(payload)
)
select f.name, f.now, case when f.divides then f.share else 0 end,
	exists (select from queue q where q.lane = f.name and not q.fair and not exists (select from given v where v.lane = q.lane and v.pod = q.pod)),
	f.over, f.work
from left_over f cross join notified`)

// settled returns a subquery for the number of slots that a pod with held slots has after a request: those that it keeps, those of its
// running jobs, and free ones up to its wish.
func settled(held string) string {
	return `(select k.slots + greatest(least(a.wish - k.slots, a.free + ` + held + ` - k.slots), 0)::int as slots
		from (select greatest(least(` + held + `, a.keep), a.used) as slots) k)`
}

// slotsFor returns an expression for the payload of a notification about a lane's slots, which [ParseSlots] parses.
func slotsFor(pod, lane string) string { return `'slots ' || ` + pod + ` || ' ' || ` + lane }

// ParseSlots parses a notification's payload. If other pods have handed over slots of a lane or are waiting for some, it returns the pod to
// which this matters, or "*" for all pods.
func ParseSlots(payload string) (podID, lane string, ok bool) {
	if payload, ok = strings.CutPrefix(payload, "slots "); ok {
		podID, lane, ok = strings.Cut(payload, " ")
	}
	return podID, lane, ok
}

// Slots is the response to a request for one limited lane.
type Slots struct {
	Lane       string
	Held       int  // number of jobs that this pod may run
	Share      int  // number of slots that the pod may keep while others wait: the lane's slots divided by the number of open pods; 0 means less than one slot each
	OthersWait bool // another pod is waiting for its share
	Over       bool // all pods together hold more slots than the lane has, because its limit is new or was lowered
	Work       bool // jobs that this pod can run are waiting in the lane
}

// Ask is a pod's request for slots in a limited lane.
type Ask struct {
	Lane string
	Keep int // number of slots that the pod keeps if it has them, at least Used and at most Wish
	Wish int // number of slots that the pod can use
	Used int // number of running jobs
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
	lanes, keeps := make([]string, len(asks)), make([]int32, len(asks))
	wishes, used := make([]int32, len(asks)), make([]int32, len(asks))
	for i, a := range asks {
		lanes[i], keeps[i], wishes[i], used[i] = a.Lane, int4(a.Keep), int4(a.Wish), int4(a.Used)
	}
	held, err := run(ctx, s, pgx.RowToStructByPos[Slots], settleSlotsSQL, args{{"pod", podID}, {"lanes", lanes}, {"keeps", keeps}, {"wishes", wishes}, {"used", used}, {"kinds", kinds}, {"channel", s.AllChannel()}, {"asked", s.stream<<streamShift + s.asked.Add(1)}})
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
from (select lane, sum(slots)::int as slots, pg_notify(@channel, ` + slotsFor("'*'", "lane") + `) from gone group by lane) g where l.name = g.lane
returning l.name`)

// VoidSlots revokes the slots of closed pods whose jobs have been recovered, notifies all pods, and returns the slots' lanes.
func VoidSlots(ctx context.Context, s *Store, podIDs []string) ([]string, error) {
	lanes, err := run(ctx, s, pgx.RowTo[string], voidSlotsSQL, args{{"pods", podIDs}, {"channel", s.AllChannel()}})
	if err != nil {
		return nil, fmt.Errorf("revoke slots: %w", err)
	}
	return lanes, nil
}
