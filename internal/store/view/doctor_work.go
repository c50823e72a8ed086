package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// readyPod is an SQL condition that is true for a live pod p that can currently start jobs.
const readyPod = `p.closed_at is null and p.lease_until > now() and p.slots > 0 and not p.draining and not p.drained`

// waitingWorkSQL counts waiting due jobs by lane and kind, together with the pods that could run them. Plan: one pass over live and
// parked_of_lane; pods and lane_kinds are small.
const waitingWorkSQL = `
select w.lane, w.kind, w.waiting, w.oldest, (select count(*) from trapeze.pods p where ` + canRun + ` and ` + readyPod + `)::int,
	exists (select from trapeze.lane_kinds k where k.kind = w.kind) or exists (select from trapeze.pods p where w.kind = any(p.kinds))
from (
	select d.lane, d.kind, count(*)::int as waiting, min(d.ready_at) filter (where d.ready_at > 'epoch') as oldest
	from ` + store.DueJobs + ` d group by d.lane, d.kind
) w left join trapeze.lanes n on n.name = w.lane
order by w.lane, w.kind`

// canRun is the SQL condition that pod p can run jobs of row w's kind. Usually, p must have a handler for the kind. If lane n belongs to
// another engine, p must serve that engine instead, because the handlers may run in other processes.
const canRun = `case when coalesce(n.engine, 'postgres') = 'postgres' then w.kind = any(p.kinds) else n.engine = any(p.engines) end`

// WaitingWork counts the due jobs of one kind that are waiting in a lane.
type WaitingWork struct {
	Lane    string
	Kind    string
	Waiting int
	Oldest  *time.Time // when the oldest job became due; nil for jobs recovered from a dead pod, which precede all others
	Pods    int        // number of pods that could currently run the jobs
	Known   bool       // a lane lists the kind, or a pod has handled it recently
}

// ReadWaitingWork counts due jobs that are waiting, by lane and kind.
func ReadWaitingWork(ctx context.Context, s *store.Store) ([]WaitingWork, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[WaitingWork], waitingWorkSQL)
	if err != nil {
		return nil, fmt.Errorf("count waiting jobs: %w", err)
	}
	return list, nil
}

// laneStatesSQL lists, for each lane, the conditions that may keep it from starting jobs. It also lists the kinds whose default lane it is,
// and counts the pods that could run any of those kinds. Plan: lanes, lane_kinds and pods are small tables.
const laneStatesSQL = `
select n.name, n.engine, coalesce(n.next_engine, ''),
	exists (select from trapeze.pods p where n.engine = any(p.engines) and p.closed_at is null and p.lease_until > now()),
	n.enabled, n.drained, n.slots, n.slots_per_pod, ` + queueStateColumns + `,
	coalesce((select array_agg(k.kind order by k.kind) from trapeze.lane_kinds k where k.lane = n.name), '{}'),
	(select count(*) from trapeze.pods p where ` + readyPod + `
		and p.kinds && coalesce((select array_agg(k.kind) from trapeze.lane_kinds k where k.lane = n.name), p.kinds))::int
from trapeze.lanes n order by n.name`

// LaneState describes the conditions that may keep a lane from starting jobs.
type LaneState struct {
	Name           string
	Engine         string
	NextEngine     string // the engine to which the lane is moving; empty if it is not moving
	Served         bool   // a live pod serves the engine; false for PostgreSQL
	Enabled        bool
	Drained        bool
	Slots          *int
	SlotsPerPod    *int
	Paused, Frozen bool     // state of the whole queue
	Kinds          []string // kinds whose default lane this is; kinds without a default lane use the lane named default
	Pods           int      // number of pods that could currently run any of these kinds or, if Kinds is empty, any kind at all
}

// LaneStates returns, for each lane, the conditions that may keep the lane from starting jobs.
func LaneStates(ctx context.Context, s *store.Store) ([]LaneState, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[LaneState], laneStatesSQL)
	if err != nil {
		return nil, fmt.Errorf("read the state of the lanes: %w", err)
	}
	return list, nil
}

// podHealthSQL lists the open pods, each with the time left on its lease. Plan: one pass over pods and remote_workers, which are small.
const podHealthSQL = `
select p.id::text, p.name, p.version, p.slots, extract(epoch from p.lease_until - clock_timestamp())::float8, p.draining, p.drained,
	w.pod is not null, coalesce(w.stream, 0), extract(epoch from clock_timestamp() - p.started_at)::float8
from trapeze.pods p left join trapeze.remote_workers w on w.pod = p.id where p.closed_at is null order by p.name, p.id`

// PodHealth describes an open pod's health.
type PodHealth struct {
	PodID    string
	Name     string
	Version  string
	Slots    int
	Lease    float64 // seconds until the lease expires; negative after that
	Draining bool    // whether the pod is shutting down
	Drained  bool    // whether an operator has drained the pod
	Remote   bool    // whether the pod is a remote worker
	Streams  int64   // number of streams that the worker has opened
	Up       float64 // seconds since the pod started
}

// ReadPodHealth returns the open pods, each with the time left on its lease.
func ReadPodHealth(ctx context.Context, s *store.Store) ([]PodHealth, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[PodHealth], podHealthSQL)
	if err != nil {
		return nil, fmt.Errorf("read the state of the pods: %w", err)
	}
	return list, nil
}

// unknownWorkSQL lists the pods that are gone or that know about fewer jobs than the table assigns to them, and counts their jobs. It
// considers only jobs that have been running for at least two minutes. It excludes live remote workers, which report their jobs themselves,
// and the jobs that other engines run. Plan: one pass over live; pods_pkey for the running ones.
const unknownWorkSQL = `
select coalesce(p.name, ''), l.pod::text, count(*)::int, min(l.id), coalesce(p.known_claims, 0), p.id is null or p.closed_at is not null
from trapeze.live l
left join trapeze.pods p on p.id = l.pod
where l.state = 'running' and l.claimed_at < now() - interval '2 minutes' and not ` + byEngine + `
	and (p.id is null or p.closed_at < now() - interval '1 minute' or p.closed_at is null and p.lease_until > now()
		and not exists (select from trapeze.remote_workers w where w.pod = p.id))
group by l.pod, p.id, p.name, p.known_claims, p.closed_at
having p.id is null or p.closed_at is not null or count(*) > p.known_claims
order by 1, 2`

// UnknownWork counts the running jobs of a pod that is gone, or that knows about fewer jobs than the table assigns to it.
type UnknownWork struct {
	Pod   string // the pod's name, or empty if it has no row
	PodID string
	Jobs  int   // number of jobs that the pod is running according to the table
	First int64 // the lowest id of those jobs
	Known int   // number of jobs that the pod's process knows
	Gone  bool
}

// FindUnknownWork returns the pods to which the table assigns running jobs that the pods do not know about.
func FindUnknownWork(ctx context.Context, s *store.Store) ([]UnknownWork, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[UnknownWork], unknownWorkSQL)
	if err != nil {
		return nil, fmt.Errorf("find running jobs unknown to their pods: %w", err)
	}
	return list, nil
}
