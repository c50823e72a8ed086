package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
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
	return Row(ctx, s, "read the queue state", pgx.RowToStructByPos[job.QueueState], queueStateSQL)
}

type queueStateAt struct {
	job.QueueState
	At time.Time
}

// dueOrRunning selects all jobs that are running or due, including those that wait for their subject.
const dueOrRunning = `(
	select l.kind, l.lane, l.state, l.ready_at from trapeze.live l
	union all
	select p.kind, p.lane, 'pending', p.run_after from trapeze.parked p where p.why in ('subject', 'key')
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
			(select l.id, l.lane, l.kind, l.subject, l.priority, l.ready_at, false as blocked, null::text as key from trapeze.live l
			where l.lane = n.name and l.state = 'pending' order by l.lane, (-l.priority), l.ready_at, l.id limit $1)
			union all
			(select p.id, p.lane, p.kind, p.subject, p.priority, p.run_after, true, case p.why when 'key' then p.key end from trapeze.parked p
			where p.lane = n.name and p.why in ('subject', 'key') order by p.lane, (-p.priority), p.run_after, p.id limit $1)
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
	laneColumns = `n.name, n.slots, n.slots_per_pod, n.inactivity_timeout_s, n.max_age_s, n.start_within_s, n.requires_approval, n.four_eyes, n.enabled, n.drained, n.engine, n.next_engine, n.template,
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
	return list, text.Wrap(err, "list lanes")
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
	return list, text.Wrap(err, "list pods")
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
	slotColumns = `l.id, l.kind, l.lane, l.subject, coalesce(l.key, ''), l.priority, l.attempt, l.fence, l.pod::text,
	coalesce(p.name, case when ` + byEngine + ` then (select n.engine from trapeze.lanes n where n.name = l.lane) end, ''), l.claimed_at,
	l.started_at is null and not ` + byEngine + `, l.cancel_requested, g.done, g.total, g.message`
	slotJoins = `left join trapeze.pods p on p.id = l.pod left join trapeze.job_progress g on g.id = l.id`
)

// byEngine is the condition that an engine other than PostgreSQL runs the job in row l of live. The pod column then contains a version 8
// UUID, which identifies the engine (see package outbox).
const byEngine = `substr(l.pod::text, 15, 1) = '8'`

func scanSlot(row pgx.CollectableRow) (j job.Slot, err error) {
	var p job.Progress
	err = row.Scan(&j.Job, &j.Kind, &j.Lane, &j.Subject, &j.Key, &j.Priority, &j.Attempt, &j.Fence, &j.PodID, &j.Pod, &j.Since,
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
	return Rows(ctx, s, "count running jobs", pgx.RowToStructByPos[BoardSlots], boardSlotsSQL)
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
	return now, text.Wrap(err, "read the status")
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
			slots = append(slots, BoardSlots{Lane: r.Lane, Pod: r.PodID, Running: 1})
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
		now.Pods[i].Running = pods[now.Pods[i].PodID]
	}
	return now, nil
}

// closuresSQL reads from the audit log when, by whom and why each target was closed. It finds nothing if an operator opened the target and
// it was then closed through SQL. Plan: audit_of_target backwards for each target, stops at its latest entry of these actions.
const closuresSQL = `
select w.target, a.action, a.at, a.actor, a.reason from unnest($1::text[], $2::text[], $3::text[]) as w(target, closes, opens)
cross join lateral (
	select a.action, a.at, a.actor, a.reason from trapeze.audit a
	where a.target = w.target and a.allowed and a.action in (w.closes, w.opens) order by a.id desc limit 1
) a
where a.action = w.closes`

type closure struct {
	Target, Action string
	job.Closure
}

// closuresOf returns a function that runs a query for closures.
func closuresOf(ctx context.Context, s *store.Store) func(string, ...any) ([]closure, error) {
	return func(sql string, args ...any) ([]closure, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[closure], sql, args...)
	}
}

// addClosures fills in who closed the queue, each drained lane and each drained pod, and why. It reads nothing if everything is open. A
// drain applies to a pod's name, so pods with the same name share a closure.
func addClosures(queue *job.QueueState, lanes []job.LaneUse, pods []job.Pod, read func(sql string, args ...any) ([]closure, error)) error {
	var targets, closes, opens []string
	to := map[[2]string][]**job.Closure{}
	want := func(closed bool, target, close, open string, at **job.Closure) {
		key := [2]string{target, close}
		if closed && to[key] == nil {
			targets, closes, opens = append(targets, target), append(closes, close), append(opens, open)
		}
		if closed {
			to[key] = append(to[key], at)
		}
	}
	if queue != nil {
		want(queue.Paused, "queue_state", "queue_state.pause", "queue_state.resume", &queue.Pause)
		want(queue.Frozen, "queue_state", "queue_state.freeze", "queue_state.unfreeze", &queue.Freeze)
	}
	for i := range lanes {
		want(lanes[i].Drained, "lane "+lanes[i].Name, "lane.drain", "lane.undrain", &lanes[i].Drain)
	}
	for i := range pods {
		want(pods[i].Drained, "pod "+pods[i].Name, "pod.drain", "pod.undrain", &pods[i].Drain)
	}
	if len(targets) == 0 {
		return nil
	}
	found, err := read(closuresSQL, targets, closes, opens)
	if err != nil {
		return fmt.Errorf("read why they are closed: %w", err)
	}
	for _, c := range found {
		for _, at := range to[[2]string{c.Target, c.Action}] {
			*at = &c.Closure
		}
	}
	return nil
}

// BoardWait is a group of jobs that are waiting for the same reason.
type BoardWait struct {
	Lane    string
	Kind    string     // empty if the group combines several kinds
	Why     string     // due, subject, key, no_handler or pods_drained; if parked, scheduled, retry, snooze, approval or children
	Subject string     // the busy subject that the jobs are waiting for, if any
	Key     string     // the key that has no free place, if any
	Blocker *int64     // the job that is running for that subject
	Jobs    int        // number of jobs, up to the limit
	Since   *time.Time // when the oldest due job became due; if no job is due yet, when the next one becomes due
	First   int64      // the lowest id in the group
	Kinds   int        // number of kinds in the group
}

// boardDueSQL groups the first due jobs in each lane by their individual reason for waiting. Other statements show whether the lane or the
// pods are full, drained or paused. Among the kinds without a handler, the $3 most frequent in each lane have separate groups, and the
// others share one. Plan: the first rows of live_for_claim and of parked_of_lane for each lane, stops at the limit; subjects_one_guard;
// pods is small.
const boardDueSQL = `
with w as materialized (
	select f.* from trapeze.lanes n cross join lateral (
		select w.id, w.lane, w.kind, w.subject, w.ready_at, w.blocked, w.key from ` + firstDue + `
	) f
), handled as materialized (
	select d.kind, count(p.id) > 0 as known, count(p.id) filter (where not p.drained and not p.draining) > 0 as open
	from (select distinct kind from w) d
	left join trapeze.pods p on p.closed_at is null and p.lease_until > now() and d.kind = any(p.kinds)
	group by d.kind
), r as (
	select w.id, w.lane, w.kind, w.ready_at, case when not h.known then 'no_handler' when not h.open then 'pods_drained'
			when w.key is not null then 'key' when c.job_id is not null then 'subject' else 'due' end as why,
		case when h.open and c.job_id is not null then w.subject else '' end as subject, case when h.open then coalesce(w.key, '') else '' end as key, case when h.open then c.job_id end as blocker
	from w join handled h on h.kind = w.kind
	left join lateral (
		select x.job_id from trapeze.subjects x
		where w.blocked and w.key is null and x.kind = w.kind and x.subject = w.subject and x.state = 'held' limit 1
	) c on true
), g as (
	select lane, kind, why, subject, key, blocker, count(*) as jobs, min(ready_at) filter (where ready_at > 'epoch') as since, min(id) as first,
		why = 'no_handler' and row_number() over (partition by lane, why order by count(*) desc, kind) > $3 as other
	from r group by lane, kind, why, subject, key, blocker
)` + boardGroups

// boardParkedSQL groups parked jobs by their reason for waiting: a time, an approval or their branches. For each reason and lane, the $3
// most frequent kinds have separate groups, and the others share one. Plan: parked_for_promotion, parked_for_approval and parked_for_branches, each of
// which stops at the limit.
const boardParkedSQL = `
with g as (
	select lane, kind, why, '' as subject, '' as key, null::bigint as blocker, count(*) as jobs, min(run_after) as since, min(id) as first,
		row_number() over (partition by lane, why order by count(*) desc, kind) > $3 as other
	from (
		(select p.* from trapeze.parked p where p.why in ('scheduled', 'retry', 'snooze') and p.run_after > '-infinity' order by p.run_after, p.id limit $1)
		union all (select p.* from trapeze.parked p where p.why = 'approval' and p.run_after > '-infinity' order by p.run_after, p.id limit $1)
		union all (select p.* from trapeze.parked p where p.why = 'children' order by p.id limit $1)
	) p
	group by lane, kind, why
)` + boardGroups

// boardGroups selects the groups in g. It merges the groups of less frequent kinds.
const boardGroups = `
select lane, case when other then '' else kind end, why, subject, key, blocker, sum(jobs)::int, min(since), min(first), count(*)::int
from g group by 1, 2, 3, 4, 5, 6 order by 7 desc, 1, 2, 3, 4, 5 limit $2`

// boardKinds is the number of kinds per lane and reason that have separate groups.
const boardKinds = 10

// BoardWaiting groups waiting jobs by the reason for which they wait. It reads at most eachLane due jobs per lane and at most parkedMost
// parked jobs for a time, for an approval and for branches each, and returns at most limit groups of each. Less frequent kinds share a group, because anyone who can submit jobs can invent
// kinds.
func BoardWaiting(ctx context.Context, s *store.Store, eachLane, parkedMost, limit int) (due, parked []BoardWait, err error) {
	due, err = store.Rows(ctx, s, pgx.RowToStructByPos[BoardWait], boardDueSQL, eachLane, limit, boardKinds)
	if err != nil {
		return nil, nil, text.Wrap(err, "list due jobs")
	}
	parked, err = store.Rows(ctx, s, pgx.RowToStructByPos[BoardWait], boardParkedSQL, parkedMost, limit, boardKinds)
	return due, parked, text.Wrap(err, "list parked jobs")
}

// SecondPerson is an SQL condition on a parked job p and its row j in jobs. It is true if the job must be approved by a person other than
// the submitter, because of its lane, the default lane of its kind, or the lane or kind of one of its next steps.
const SecondPerson = `exists (
	select from (
		select unnest(array[p.lane, coalesce((select k.lane from trapeze.lane_kinds k where k.kind = p.kind), 'default')])
		union
		select unnest(array[s ->> 'lane', coalesce(k.lane, 'default')]) from json_array_elements(j.planned) s left join trapeze.lane_kinds k on k.kind = s ->> 'kind'
	) w(lane) cross join lateral trapeze.lane_rules(w.lane) n where n.four_eyes
)`

// needsSecondSQL reports whether a job must be approved by a person other than the submitter. Plan: parked_pkey, jobs_pkey; lanes and
// lane_kinds are small.
const needsSecondSQL = `
select ` + SecondPerson + ` from trapeze.parked p join trapeze.jobs j on j.id = p.id where p.id = $1 and p.why = 'approval'`

// NeedsSecond reports whether a job awaits approval that, because of a lane, must come from a person other than the submitter.
func NeedsSecond(ctx context.Context, s *store.Store, id int64) (bool, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[bool], needsSecondSQL, id)
	return len(found) > 0 && found[0], text.Wrap(err, "read who may approve job %d", id)
}

// BoardApproval is a job that is awaiting approval.
type BoardApproval struct {
	ID        int64
	Kind      string
	Lane      string
	Subject   string
	Submitter string
	CreatedAt time.Time
	Epoch     int
	Second    bool // a lane requires approval by a person other than the submitter
}

// boardApprovalsSQL lists jobs that are awaiting approval, longest wait first. Plan: parked_for_approval, stops at the limit; primary key
// lookups.
const boardApprovalsSQL = `
select p.id, p.kind, p.lane, p.subject, j.submitter, j.created_at, p.epoch, ` + SecondPerson + `
from (select id, kind, lane, subject, run_after, epoch from trapeze.parked where why = 'approval' order by run_after, id limit $1) p
join trapeze.jobs j on j.id = p.id order by p.run_after, p.id`

// BoardApprovals returns up to limit jobs that are awaiting approval, longest wait first.
func BoardApprovals(ctx context.Context, s *store.Store, limit int) ([]BoardApproval, error) {
	return Rows(ctx, s, "list jobs that await approval", pgx.RowToStructByPos[BoardApproval], boardApprovalsSQL, limit)
}

// countedTo limits the count of waiting jobs in a lane. Graphs do not need larger numbers.
const countedTo = 100_000

// fleetSQL counts the due jobs that are waiting in each lane, up to a limit, and returns how long the oldest one has been due. A recovered
// job precedes all others and has no due time, so it is counted but has no age. The lanes that were made from a template count as one, under its name. Plan: per lane an Index Scan on live_for_claim and on
// parked_of_lane that stops at the limit, and one probe of each per rank; pods_open.
const fleetSQL = `
select coalesce(n.template, n.name), sum((select count(*)::int from (
		select from ` + store.DueJobs + ` w where w.lane = n.name limit $1) w))::int,
	max(coalesce(extract(epoch from now() - (
		select min(r.ready_at) from ` + store.AllRanks + ` cross join lateral (
			(select l.ready_at from trapeze.live l where l.lane = n.name and (-l.priority) = rank and l.ready_at > 'epoch' and l.state = 'pending'
			order by l.lane, (-l.priority), l.ready_at, l.id limit 1)
			union all
			(select p.run_after from trapeze.parked p where p.lane = n.name and (-p.priority) = rank and p.why in ('subject', 'key')
			order by p.lane, (-p.priority), p.run_after, p.id limit 1)
		) r)), 0))::float8,
	(select count(*)::int from trapeze.pods p where p.closed_at is null)
from trapeze.lanes n where n.name not like '%*' group by 1`

// Backlog describes the due jobs in a lane.
type Backlog struct {
	Lane          string  // or a template, for all lanes that were made from it
	Waiting       int     // the count stops at 100,000
	OldestSeconds float64 // 0 if no jobs are due, or only recovered ones
	Pods          int     // total number of open pods, the same for every lane
}

// Backlogs returns each lane's backlog. There is always at least one lane. The cost does not depend on the size of the backlog or the
// history.
func Backlogs(ctx context.Context, s *store.Store) ([]Backlog, error) {
	return Rows(ctx, s, "count waiting jobs", pgx.RowToStructByPos[Backlog], fleetSQL, countedTo)
}
