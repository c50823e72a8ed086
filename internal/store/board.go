package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a person sees at a glance: what runs, what waits and why. History is not read here, and what may be large is read up to a
// limit: a backlog of millions must not make the page that shows it part of the problem.

// BoardGate is the global gate.
type BoardGate struct{ Paused, Frozen bool }

// boardGateSQL reads the gate. Plan: gate_pkey, one row.
const boardGateSQL = `select paused, frozen from trapeze.gate`

// BoardGate reads whether anything is claimed at all.
func (s *Store) BoardGate(ctx context.Context) (BoardGate, error) {
	list, err := rows(ctx, s, pgx.RowToStructByPos[BoardGate], boardGateSQL)
	if err != nil {
		return BoardGate{}, fmt.Errorf("read the gate: %w", err)
	}
	if len(list) == 0 {
		return BoardGate{}, nil
	}
	return list[0], nil
}

// BoardLane is a lane with its settings and what waits in it.
type BoardLane struct {
	Name             string
	Slots            *int // of all pods together; nil: no limit
	SlotsPerPod      *int
	PollIntervalMS   *int
	StaleAfterS      *int
	MaxAgeS          *int
	RequiresApproval bool
	Enabled          bool
	Drained          bool
	Kinds            []string   // whose default lane it is
	Waiting          int        // due, and not claimed: at most the limit asked for
	Oldest           *time.Time // of those
}

// boardLanesSQL lists lanes and counts what waits in each, up to a limit.
// Plan: lanes is small; the first of live_for_claim for each lane, which stops at the limit.
const boardLanesSQL = `
select n.name, n.slots, n.slots_per_pod, n.poll_interval_ms, n.stale_after_s, n.max_age_s, n.requires_approval, n.enabled, n.drained,
	array(select k.kind from trapeze.lane_kinds k where k.lane = n.name order by k.kind), w.waiting, w.oldest
from trapeze.lanes n cross join lateral (
	select count(*)::int as waiting, min(f.ready_at) filter (where f.ready_at > 'epoch') as oldest from (
		select l.ready_at from trapeze.live l where l.lane = n.name and l.state = 'pending'
		order by l.lane, (-l.priority), l.ready_at, l.id limit $1
	) f
) w
order by n.name`

// BoardLanes lists the lanes; what waits in each is counted up to most.
func (s *Store) BoardLanes(ctx context.Context, most int) ([]BoardLane, error) {
	list, err := rows(ctx, s, pgx.RowToStructByPos[BoardLane], boardLanesSQL, most)
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	return list, nil
}

// BoardSlots counts what a pod runs in a lane.
type BoardSlots struct {
	Lane, Pod string
	Running   int
}

// boardSlotsSQL counts what runs. Plan: one pass over live, which no index spares (it would cost every claim): 0.3 to 0.5 s at a
// million waiting jobs on two shared cores, so callers share its answer.
const boardSlotsSQL = `select lane, pod::text, count(*)::int from trapeze.live where state = 'running' group by lane, pod`

// BoardSlots counts what runs, by lane and pod.
func (s *Store) BoardSlots(ctx context.Context) ([]BoardSlots, error) {
	list, err := rows(ctx, s, pgx.RowToStructByPos[BoardSlots], boardSlotsSQL)
	if err != nil {
		return nil, fmt.Errorf("count what runs: %w", err)
	}
	return list, nil
}

// BoardRun is a running job.
type BoardRun struct {
	ID              int64
	PipelineID      int64
	Kind            string
	Lane            string
	Subject         string
	Priority        int
	Attempt         int
	Fence           int64
	Pod             string // its boot id
	PodName         *string
	ClaimedAt       *time.Time
	CancelRequested bool
	Done, Total     *int64
	Message         *string
}

// boardRunningSQL lists what runs, the longest first. Plan: one pass over live, as boardSlotsSQL; then primary keys.
const boardRunningSQL = `
select l.id, j.pipeline_id, l.kind, l.lane, l.subject, l.priority, l.attempt, l.fence, l.pod::text, p.name, l.claimed_at,
	l.cancel_requested, g.done, g.total, g.message
from (
	select id, kind, lane, subject, priority, attempt, fence, pod, claimed_at, cancel_requested
	from trapeze.live where state = 'running' and ($1::text is null or pod = $1::uuid) order by claimed_at, id limit $2
) l
join trapeze.jobs j on j.id = l.id
left join trapeze.pods p on p.boot = l.pod
left join trapeze.job_progress g on g.id = l.id
order by l.claimed_at, l.id`

// BoardRunning lists at most limit running jobs, the longest first: of one pod, or, with an empty boot id, of all.
func (s *Store) BoardRunning(ctx context.Context, boot string, limit int) ([]BoardRun, error) {
	list, err := rows(ctx, s, pgx.RowToStructByPos[BoardRun], boardRunningSQL, some(boot), limit)
	if err != nil {
		return nil, fmt.Errorf("list what runs: %w", err)
	}
	return list, nil
}

// BoardPod is a process that runs jobs.
type BoardPod struct {
	Boot       string
	Name       string
	Version    string
	Kinds      []string
	Slots      int
	StartedAt  time.Time
	LeaseUntil time.Time
	Lapsed     bool // its lease has run out, and nobody has closed its row yet
	Draining   bool // it is stopping
	Drained    bool // by an operator
	ClosedAt   *time.Time
	Closed     *string // left, lapsed
	Owner      *string // who may speak for a remote worker; nil: it is a pod, with a database of its own
	Stream     *int64  // the number of a remote worker's latest stream
}

// boardPodsSQL lists pods, open ones first, remote workers among them. Plan: pods and remote_workers are small.
const boardPodsSQL = `
select p.boot::text, p.name, p.version, p.kinds, p.slots, p.started_at, p.lease_until, p.closed_at is null and p.lease_until < now(),
	p.draining, p.drained, p.closed_at, p.closed, w.owner, w.stream
from trapeze.pods p left join trapeze.remote_workers w on w.boot = p.boot
order by p.closed_at desc nulls first, p.name, p.started_at, p.boot limit $1`

// BoardPods lists at most limit pods: the open ones, then those whose rows are still kept, the latest first.
func (s *Store) BoardPods(ctx context.Context, limit int) ([]BoardPod, error) {
	list, err := rows(ctx, s, pgx.RowToStructByPos[BoardPod], boardPodsSQL, limit)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list, nil
}
