package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// anyDueSQL reports whether jobs have become due since $3 in any of an engine's lanes, and whether any job without a recorded start has
	// not been taken by a forwarder in the last $2 milliseconds. It also returns the current time. Plan: lanes is one page; per lane and
	// rank, an Index Scan on live_for_claim from (lane, rank, time) up to its first pending row; outbox_unstarted, one row.
	anyDueSQL = `
select exists (select from trapeze.lanes n cross join ` + store.AllRanks + ` cross join lateral (
		select from trapeze.live l where l.lane = n.name and (-l.priority) = rank and l.ready_at >= $3 and l.state = 'pending'
		order by l.lane, (-l.priority), l.ready_at, l.id limit 1) l
	where n.engine = $1),
	exists (select from trapeze.outbox o where o.engine = $1 and o.run is null and o.seen_at < now() - $2::bigint * interval '1 millisecond'),
	now()`

	// openLanesSQL locks the lanes in which an engine may start jobs. Only one forwarder at a time can lock a lane with a slot limit, so
	// that two forwarders do not both use its last slots. The locks also keep a lane's engine from changing until the transaction ends,
	// because the command that moves a lane to another engine waits for them. Lanes that are moving are not returned. Plan: lanes is one
	// page.
	openLanesSQL = `
with free as (
	select n.name from trapeze.lanes n where ` + openLane + ` and n.slots is null order by n.name for share
), limited as (
	select n.name, n.slots from trapeze.lanes n where ` + openLane + ` and n.slots is not null order by n.name for no key update skip locked
)
select name, $2::int as want from free
union all
select name, least(slots, $2::int) from limited`
	openLane = `n.engine = $1 and n.next_engine is null and n.enabled and not n.drained
		and not coalesce((select g.paused or g.frozen from trapeze.queue_state g), true)`

	// roomSQL returns how many more jobs may run in each lane. Its snapshot is newer than the lane locks. For a lane without a slot limit,
	// it counts outbox rows up to $3, a few of which may belong to jobs that have ended. Plan: outbox_of_lane, and live_pkey for each
	// running job of a lane with a limit.
	roomSQL = `
select n.name, least(case when n.slots is null
	then $3::int - (select count(*) from (select from trapeze.outbox o where o.lane = n.name limit $3::int) o)
	else n.slots - (select count(*) from trapeze.outbox o join trapeze.live l on l.id = any(array[o.id])
		where o.lane = n.name and l.fence = o.fence and l.state = 'running') end, $2)::int
from trapeze.lanes n where n.name = any($1::text[])`

	// takeSQL claims each lane's most urgent pending jobs for an engine, and frees keys that are held only while a job is pending. Unlike a
	// pod's claim, it starts a new epoch, takes jobs of all kinds, and adds the jobs to the outbox. It skips jobs that became due before $5.
	// Plan: per lane and rank, an Index Scan on live_for_claim from (lane, rank, time) that stops at the wanted number; per job, primary key
	// probes and inserts.
	takeSQL = `
with picked as materialized (
	select c.* from unnest($2::text[], $3::int[]) as w(lane, want)
	cross join lateral (
		select r.* from ` + store.AllRanks + ` cross join lateral (
			select k.id, ` + nextEpochFence + ` as next_fence from trapeze.live k
			where k.lane = w.lane and (-k.priority) = rank and k.ready_at >= $5 and k.state = 'pending' and ` + store.InTime + ` and ` + store.KeyUnlocked + `
			order by k.lane, (-k.priority), k.ready_at, k.id limit w.want for update skip locked
		) r limit w.want
	) c
), claimed as (
	update trapeze.live l set state = 'running', fence = o.next_fence, attempt = l.attempt + 1, pod = $1::uuid,
		event_no = l.event_no + 1, claim_xid = pg_current_xact_id(), claimed_at = now(), isolated = false,
		unique_while = case when l.unique_while = 'active' then 'active' end
	from picked o
	where l.id = any(array[o.id])
	returning l.*, null::text as run
), freed as (
	delete from trapeze.unique_keys where job_id = any(array(select id from claimed where unique_while is null))
), events as (
	insert into trapeze.job_events (jobs, event_nos, fences, pod, from_state, to_state, event, fields)
	select array_agg(id), array_agg(event_no), array_agg(fence), $1::uuid, 'pending', 'running', 'job.claimed',
		json_build_object('engine', $4::text) from claimed
	having count(*) > 0
), listed as (
	insert into trapeze.outbox as o (id, fence, engine, lane) select id, fence, $4, lane from claimed
	on conflict (id) do update set fence = excluded.fence, engine = excluded.engine, lane = excluded.lane, run = null, seen_at = now()
)
select ` + itemColumns + ` from claimed l join trapeze.jobs j on j.id = l.id
order by l.priority desc, l.ready_at, l.id`

	// nextEpochFence computes the last fence of the next epoch of a row k. This fence is higher than those of all claims in earlier
	// histories of the database (see nextFence in package store).
	nextEpochFence = `(k.fence % 10000000000 / 1000000 + 2) * 1000000 - 1 + greatest(k.fence - k.fence % 10000000000, 10000000000 * (
		select c.epoch + greatest(trapeze.timeline() - c.timeline, 0) from trapeze.cluster c where c.one))`
)

// Due returns the jobs to start. It claims due jobs in the engine's lanes, at most limit per lane. It also returns jobs whose start was not
// recorded in time; these stay in their current epoch. For each job, the forwarder starts a run whose workflow id consists of the job's id
// and epoch, and then calls [Outbox.Started]. If the engine answers that the workflow id is in use, an earlier forwarder has already
// started the run.
//
// If a job was cancelled before its start was recorded, Due ends the job and does not return it.
func (b *Outbox) Due(ctx context.Context, limit int) (list []Item, err error) {
	type state struct {
		Due, Unstarted bool
		Now            time.Time
	}
	since, all := b.scan.begin(), true
	found, err := store.Rows(ctx, b.s, pgx.RowToStructByPos[state], anyDueSQL, b.o.Engine, b.o.RetakeAfter.Milliseconds(), since)
	if err == nil && found[0].Due {
		list, all, err = b.take(ctx, limit, since)
	}
	if err == nil {
		b.scan.end(since, found[0].Now, all)
	}
	if err == nil && found[0].Unstarted {
		var again []Item
		again, err = b.unstarted(ctx, limit)
		list = append(again, list...)
	}
	if err != nil {
		// Jobs that have been claimed are returned again once their starts are overdue.
		return nil, fmt.Errorf("list the due jobs of engine %s: %w", b.o.Engine, err)
	}
	return list, nil
}

// scan determines the due time from which Due reads the lanes. A scan of a whole lane also reads its running jobs, and an engine can be
// running a great many. After a scan that claimed everything, later scans therefore skip jobs that became due before it, until forget is
// called. Occasional whole scans, which take up at most a twentieth of the time, find any jobs that the shorter scans miss.
type scan struct {
	mu     sync.Mutex
	mark   time.Time // on the database's clock
	forgot bool      // whether forget was called during the scan
	whole  time.Time // when the next scan of whole lanes is due
	began  time.Time
}

const (
	// scanFactor is the minimum time between whole scans, as a multiple of the duration of one.
	scanFactor = 20
	// cheapScan is the duration below which every scan is a whole scan.
	cheapScan = 5 * time.Millisecond
	// scanMargin allows for submissions that have not been committed yet. Jobs of transactions that stay open longer are found by a whole
	// scan.
	scanMargin = time.Second
)

// begin returns the due time from which to read. Negative infinity means to read whole lanes.
func (c *scan) begin() pgtype.Timestamptz {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgot = false
	if c.began = time.Now(); c.mark.IsZero() || !c.began.Before(c.whole) {
		return pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}
	}
	return pgtype.Timestamptz{Valid: true, Time: c.mark}
}

// forget makes the next scan read whole lanes, because a job with an older due time has become claimable.
func (c *scan) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mark, c.forgot = time.Time{}, true
}

// end records the end of a scan that began at now by the database's clock. all reports whether the scan claimed everything that could be
// claimed.
func (c *scan) end(since pgtype.Timestamptz, now time.Time, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if took := time.Since(c.began); since.InfinityModifier != pgtype.Finite && took > cheapScan {
		c.whole = time.Now().Add(scanFactor * took)
	}
	if all && !c.forgot {
		c.mark = now.Add(-scanMargin)
	}
}

// take claims due jobs. all is false if a lane may still contain due jobs that could not be claimed.
func (b *Outbox) take(ctx context.Context, limit int, since pgtype.Timestamptz) (list []Item, all bool, err error) {
	type lane struct {
		Name string
		Want int
	}
	err = b.s.Tx(ctx, func(tx pgx.Tx) error {
		list, all = nil, true
		lanes, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[lane], b.s.In(openLanesSQL), []any{b.o.Engine, limit})
		if err != nil || len(lanes) == 0 {
			all = false // jobs may be waiting in closed lanes
			return err
		}
		names, wants, at := []string{}, []int{}, map[string]int{}
		for i, l := range lanes {
			names, wants, at[l.Name] = append(names, l.Name), append(wants, l.Want), i
		}
		rooms, err := store.Query(ctx, b.s, tx, pgx.RowToStructByPos[lane], roomSQL, names, limit, b.o.MaxOpen)
		if err != nil {
			return err
		}
		for _, l := range rooms {
			wants[at[l.Name]] = max(l.Want, 0)
		}
		list, err = store.Query(ctx, b.s, tx, pgx.RowToStructByPos[Item], takeSQL, b.podID, names, wants, b.o.Engine, since)
		for _, i := range list {
			wants[at[i.Lane]]--
		}
		all = slices.Min(wants) > 0
		return err
	})
	return list, all, err
}

const (
	// unstartedSQL and startedBeforeSQL take outbox rows that no forwarder has taken in the given number of milliseconds: unstartedSQL
	// those without a recorded run, startedBeforeSQL those with one. Both delete rows whose epoch is over because a command has ended the
	// job. Plan: outbox_unstarted or outbox_started up to the limit; primary key probes.
	unstartedSQL     = takeOverdue + `o.run is null` + takenAgain
	startedBeforeSQL = takeOverdue + `o.run is not null` + takenAgain

	takeOverdue = `
with due as materialized (
	select o.id, o.fence, o.run from trapeze.outbox o
	where o.engine = $2 and o.seen_at < now() - $3::bigint * interval '1 millisecond' and `
	takenAgain = `
	order by o.seen_at limit $4 for update skip locked
), still as materialized (
	select l.*, d.run from due d join trapeze.live l on l.id = any(array[d.id]) where l.fence = d.fence and l.pod = $1::uuid
), over as (
	delete from trapeze.outbox o using due d where o.id = d.id and d.id not in (select id from still)
), seen as (
	update trapeze.outbox o set seen_at = now() from still s where o.id = s.id
)
select ` + itemColumns + ` from still l join trapeze.jobs j on j.id = l.id
order by l.id`
)

// unstarted returns jobs whose start was not recorded in time. It ends those that were cancelled in the meantime.
func (b *Outbox) unstarted(ctx context.Context, limit int) (list []Item, err error) {
	found, err := b.overdue(ctx, unstartedSQL, b.o.RetakeAfter, limit)
	for _, i := range found {
		if !i.Cancelled {
			list = append(list, i)
			continue
		}
		// If the run begins before the job is ended here, its start is recorded, and Cancels returns the request.
		if _, ended := b.end(ctx, i.ID, i.Fence, cancelledEnd, true); ended != nil && !errors.Is(ended, ErrInactive) {
			return nil, ended
		}
	}
	return list, err
}

var cancelledEnd = End{State: job.Cancelled, Reason: job.ReasonCancelled}

// Lost returns at most limit jobs whose runs no forwarder has examined for the given time. A reconciler asks the engine about each of these
// runs. If the run has ended but its end is not recorded in PostgreSQL, the reconciler calls [Outbox.End]. If the engine does not know the
// run, it calls [Outbox.Again].
func (b *Outbox) Lost(ctx context.Context, unseen time.Duration, limit int) ([]Item, error) {
	list, err := b.overdue(ctx, startedBeforeSQL, unseen, limit)
	if err != nil {
		return nil, fmt.Errorf("list the runs of engine %s: %w", b.o.Engine, err)
	}
	return list, nil
}

func (b *Outbox) overdue(ctx context.Context, sql string, unseen time.Duration, limit int) ([]Item, error) {
	return store.Rows(ctx, b.s, pgx.RowToStructByPos[Item], sql, b.podID, b.o.Engine, unseen.Milliseconds(), limit)
}
