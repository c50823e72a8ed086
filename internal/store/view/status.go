package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// The API, the command line and the dashboard show the queue state, the lanes, the pods and the running jobs in the same format.
// [ReadStatus] reads everything. [StatusUpTo] limits the lists and the counts of due jobs, but still makes one or two passes over live, so
// callers share its result.

// queueStateSQL reads the queue state. If the row is missing, the queue counts as paused, as it does for heartbeats. Plan: queue_state_pkey, one row.
const (
	queueStateSQL     = `select ` + queueStateColumns
	queueStateAtSQL   = queueStateSQL + `, now()`
	queueStateColumns = `coalesce((select paused from trapeze.queue_state), true), ` + frozenColumn
	frozenColumn      = `coalesce((select frozen from trapeze.queue_state), false)`
)

// Queue returns the queue state.
func Queue(ctx context.Context, s *store.Store) (job.QueueState, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.QueueState], queueStateSQL)
	if err != nil {
		return job.QueueState{}, fmt.Errorf("read the queue state: %w", err)
	}
	return found[0], nil
}

type queueStateAt struct {
	job.QueueState
	At time.Time
}

// dueOrRunning selects all jobs that are running or due, including those that wait for their subject.
const dueOrRunning = `(
	select l.kind, l.lane, l.state, l.ready_at from trapeze.live l
	union all
	select p.kind, p.lane, 'pending', p.run_after from trapeze.parked p where p.why = 'subject'
)`

// laneUseSQL counts running and waiting jobs by lane. Plan: one pass over live and parked_of_lane.
const laneUseSQL = `
select ` + laneColumns + `, coalesce(u.running, 0), coalesce(u.waiting, 0), u.oldest, ` + closedColumns + `
from trapeze.lanes n left join (
	select l.lane, count(*) filter (where l.state = 'running')::int as running, count(*) filter (where l.state = 'pending')::int as waiting,
		min(case when l.state = 'pending' and l.ready_at > 'epoch' then l.ready_at end) as oldest
	from ` + dueOrRunning + ` l group by l.lane
) u on u.lane = n.name
order by n.name`

// firstDue selects the first $1 due jobs of lane n. Each branch has its own order and limit, because PostgreSQL would otherwise sort all due jobs
// of the lane. Plan: live_for_claim and parked_of_lane, each of which stops at the limit; a sort of the rows found.
const firstDue = `(
			(select l.id, l.lane, l.kind, l.subject, l.priority, l.ready_at, false as blocked from trapeze.live l
			where l.lane = n.name and l.state = 'pending' order by l.lane, (-l.priority), l.ready_at, l.id limit $1)
			union all
			(select p.id, p.lane, p.kind, p.subject, p.priority, p.run_after, true from trapeze.parked p
			where p.lane = n.name and p.why = 'subject' order by p.lane, (-p.priority), p.run_after, p.id limit $1)
		) w order by (-w.priority), w.ready_at, w.id limit $1`

// boardLanesSQL lists lanes and counts the waiting jobs in each lane up to a limit. Plan: one pass over lanes, which is small; the first
// rows of live_for_claim and parked_of_lane for each lane, stops at the limit.
const boardLanesSQL = `
select ` + laneColumns + `, 0, w.waiting, w.oldest, ` + closedColumns + `
from trapeze.lanes n cross join lateral (
	select count(*)::int as waiting, min(f.ready_at) filter (where f.ready_at > 'epoch') as oldest from (
		select w.ready_at from ` + firstDue + `
	) f
) w
order by n.name`

const (
	laneColumns = `n.name, n.slots, n.slots_per_pod, n.stale_after_s, n.max_age_s, n.requires_approval, n.four_eyes, n.enabled, n.drained, n.engine, n.next_engine,
	array(select k.kind from trapeze.lane_kinds k where k.lane = n.name order by k.kind)`
	closedColumns = `coalesce((select paused or frozen from trapeze.queue_state), true), ` + frozenColumn
)

// Lanes returns the lanes, each with the numbers of its running and waiting jobs.
func Lanes(ctx context.Context, s *store.Store) ([]job.LaneUse, error) {
	return lanes(ctx, s, laneUseSQL)
}

// LanesUpTo returns the lanes, each with the number of its waiting jobs, counted up to most. It does not count running jobs.
func LanesUpTo(ctx context.Context, s *store.Store, most int) ([]job.LaneUse, error) {
	return lanes(ctx, s, boardLanesSQL, most)
}

func lanes(ctx context.Context, s *store.Store, sql string, args ...any) ([]job.LaneUse, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.LaneUse], sql, args...)
	if err == nil {
		err = addClosures(nil, list, nil, closuresOf(ctx, s))
	}
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	return list, nil
}

const (
	// podsSQL lists pods and remote workers, open ones first. Plan: pods and remote_workers are small; live is read once for all pods.
	podsSQL = `
select ` + podColumns + `
from trapeze.pods p left join (
	select l.pod, count(*)::int as running from trapeze.live l where l.pod is not null group by l.pod
) u on u.pod = p.id
left join trapeze.remote_workers w on w.pod = p.id
where $1 or p.closed_at is null
order by p.closed_at is not null, p.started_at, p.id`
	// boardPodsSQL lists open pods first, then closed ones, most recently closed first. Plan: one pass over pods and remote_workers, which
	// are small.
	boardPodsSQL = `
select ` + podColumns + `
from trapeze.pods p cross join (select 0 as running) u left join trapeze.remote_workers w on w.pod = p.id
order by p.closed_at desc nulls first, p.name, p.started_at, p.id limit $1`
	podColumns = `p.id::text, p.name, p.version, p.kinds, p.slots, coalesce(u.running, 0),
	p.started_at, p.lease_until, p.draining, p.drained, p.closed_at, p.closed, w.pod is not null, w.owner, w.stream`
)

// Pods returns the open pods. If closed is set, it also returns closed pods that still have a row.
func Pods(ctx context.Context, s *store.Store, closed bool) ([]job.Pod, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Pod], podsSQL, closed)
	if err == nil {
		err = addClosures(nil, nil, list, closuresOf(ctx, s))
	}
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list, nil
}

const (
	// slotsInUseSQL lists running jobs by pod, in the order in which they were claimed. Plan: one pass over live; primary key lookups.
	slotsInUseSQL = `select ` + slotColumns + ` from trapeze.live l ` + slotJoins + `
where l.state = 'running' order by p.name, l.pod, l.claimed_at, l.id`
	// boardRunningSQL lists running jobs, longest-running first. Plan: one pass over live, as for boardSlotsSQL; then primary key lookups.
	boardRunningSQL = `
select ` + slotColumns + `
from (select * from trapeze.live where state = 'running' order by claimed_at, id limit $1) l ` + slotJoins + `
order by l.claimed_at, l.id`
	slotColumns = `l.id, l.kind, l.lane, l.subject, l.priority, l.attempt, l.fence, l.pod::text,
	coalesce(p.name, case when ` + byEngine + ` then (select n.engine from trapeze.lanes n where n.name = l.lane) end, ''), l.claimed_at,
	l.started_at is null and not ` + byEngine + `, l.cancel_requested, g.done, g.total, g.message`
	slotJoins = `left join trapeze.pods p on p.id = l.pod left join trapeze.job_progress g on g.id = l.id`
)

// byEngine is the condition that an engine other than PostgreSQL runs the job in row l of live. The pod column then contains a version 8
// UUID, which identifies the engine (see package outbox).
const byEngine = `substr(l.pod::text, 15, 1) = '8'`

func scanSlot(row pgx.CollectableRow) (j job.Slot, err error) {
	var p job.Progress
	err = row.Scan(&j.Job, &j.Kind, &j.Lane, &j.Subject, &j.Priority, &j.Attempt, &j.Fence, &j.Boot, &j.Pod, &j.Since,
		&j.Fetched, &j.CancelRequested, &p.Done, &p.Total, &p.Message)
	if p != (job.Progress{}) {
		j.Progress = &p
	}
	return j, err
}

// BoardSlots is the number of jobs that a pod, given by its id, is running in a lane.
type BoardSlots struct {
	Lane, Pod string
	Running   int
}

// boardSlotsSQL counts running jobs by lane and pod. Plan: one pass over live. An index would make every claim more expensive. With a
// million waiting jobs, the pass takes 0.3 to 0.5 s on two shared cores, so callers share its result.
const boardSlotsSQL = `select lane, pod::text, count(*)::int from trapeze.live where state = 'running' group by lane, pod`

// SlotsInUse counts running jobs by lane and pod.
func SlotsInUse(ctx context.Context, s *store.Store) ([]BoardSlots, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[BoardSlots], boardSlotsSQL)
	if err != nil {
		return nil, fmt.Errorf("count running jobs: %w", err)
	}
	return list, nil
}

// ReadStatus reads the whole status in one snapshot.
func ReadStatus(ctx context.Context, s *store.Store) (now job.Fleet, err error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	err = Snapshot(ctx, s, func(tx pgx.Tx) error {
		if now.Queue, err = store.QueryOne[job.QueueState](ctx, s, tx, nil, queueStateSQL); err == nil {
			now.Lanes, err = store.Query(ctx, s, tx, pgx.RowToStructByPos[job.LaneUse], laneUseSQL)
		}
		if err == nil {
			now.Pods, err = store.Query(ctx, s, tx, pgx.RowToStructByPos[job.Pod], podsSQL, false)
		}
		if err == nil {
			err = addClosures(&now.Queue, now.Lanes, now.Pods, func(sql string, args ...any) ([]closure, error) {
				return store.Query(ctx, s, tx, pgx.RowToStructByPos[closure], sql, args...)
			})
		}
		if err == nil {
			now.Running, err = store.Query(ctx, s, tx, scanSlot, slotsInUseSQL)
		}
		return err
	})
	if now.Running == nil {
		now.Running = []job.Slot{}
	}
	if now.Pods == nil {
		now.Pods = []job.Pod{}
	}
	if err != nil {
		return job.Fleet{}, fmt.Errorf("read the status: %w", err)
	}
	return now, nil
}

// StatusLimits limits what [StatusUpTo] reads.
type StatusLimits struct {
	Waiting int // maximum number of waiting jobs counted per lane
	Pods    int // maximum number of pods, open ones first
	Running int // maximum number of running jobs, longest-running first
}

// StatusUpTo reads the status within the given limits. It includes closed pods that still have a row, and counts all running jobs.
func StatusUpTo(ctx context.Context, s *store.Store, most StatusLimits) (now job.Fleet, err error) {
	queue, err := store.Rows(ctx, s, pgx.RowToStructByPos[queueStateAt], queueStateAtSQL)
	if err == nil {
		now.Queue, now.At = queue[0].QueueState, queue[0].At
		now.Lanes, err = LanesUpTo(ctx, s, most.Waiting)
	}
	if err == nil {
		now.Pods, err = store.Rows(ctx, s, pgx.RowToStructByPos[job.Pod], boardPodsSQL, most.Pods)
	}
	if err == nil {
		err = addClosures(&now.Queue, nil, now.Pods, closuresOf(ctx, s))
	}
	if err == nil {
		now.Running, err = store.Rows(ctx, s, scanSlot, boardRunningSQL, most.Running)
	}
	var slots []BoardSlots
	if len(now.Running) < most.Running { // all running jobs are listed, so no second pass is needed
		for _, r := range now.Running {
			slots = append(slots, BoardSlots{Lane: r.Lane, Pod: r.Boot, Running: 1})
		}
	} else if err == nil {
		slots, err = SlotsInUse(ctx, s)
	}
	if err != nil {
		return job.Fleet{}, fmt.Errorf("read the status: %w", err)
	}
	lanes, pods := map[string]int{}, map[string]int{}
	for _, boardSlots := range slots {
		lanes[boardSlots.Lane] += boardSlots.Running
		pods[boardSlots.Pod] += boardSlots.Running
	}
	for i := range now.Lanes {
		now.Lanes[i].Running = lanes[now.Lanes[i].Name]
	}
	for i := range now.Pods {
		now.Pods[i].Running = pods[now.Pods[i].Boot]
	}
	return now, nil
}
