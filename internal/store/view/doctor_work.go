package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// alivePod is the condition of a pod that could start a job now.
const alivePod = `p.closed_at is null and p.lease_until > now() and p.slots > 0 and not p.draining and not p.drained`

// waitingWorkSQL counts due jobs that wait, by lane and kind, with the pods that could run them. Plan: one pass over live; pods is
// small.
const waitingWorkSQL = `
select w.lane, w.kind, w.waiting, w.oldest, (select count(*) from trapeze.pods p where w.kind = any(p.kinds) and ` + alivePod + `)::int
from (
	select l.lane, l.kind, count(*)::int as waiting, min(l.ready_at) filter (where l.ready_at > 'epoch') as oldest
	from trapeze.live l where l.state = 'pending' group by l.lane, l.kind
) w order by w.lane, w.kind`

// WaitingWork counts the due jobs of one kind that wait in a lane.
type WaitingWork struct {
	Lane    string
	Kind    string
	Waiting int
	Oldest  *time.Time // when it became due; nil: recovered from a dead pod, and ahead of all others
	Pods    int        // number that could run it now
}

// ReadWaitingWork counts due jobs that wait, by lane and kind.
func ReadWaitingWork(ctx context.Context, s *store.Store) ([]WaitingWork, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[WaitingWork], waitingWorkSQL)
	if err != nil {
		return nil, fmt.Errorf("count what waits: %w", err)
	}
	return list, nil
}

// laneGatesSQL reads the conditions that may keep a lane from starting jobs, the kinds whose default lane it is, and the pods that
// could run any of them. Plan: lanes, lane_kinds and pods are small.
const laneGatesSQL = `
select n.name, n.enabled, n.drained, n.slots, n.slots_per_pod, ` + gateColumns + `,
	coalesce((select array_agg(k.kind order by k.kind) from trapeze.lane_kinds k where k.lane = n.name), '{}'),
	(select count(*) from trapeze.pods p where ` + alivePod + `
		and p.kinds && coalesce((select array_agg(k.kind) from trapeze.lane_kinds k where k.lane = n.name), p.kinds))::int
from trapeze.lanes n order by n.name`

// LaneGate holds the conditions that may keep a lane from starting jobs.
type LaneGate struct {
	Name           string
	Enabled        bool
	Drained        bool
	Slots          *int
	SlotsPerPod    *int
	Paused, Frozen bool     // for all lanes
	Kinds          []string // whose default lane it is; the lane named default is that of all others
	Pods           int      // number that could run any of these kinds now; if there are none, that run any kind
}

// LaneGates returns the conditions that may keep each lane from starting jobs.
func LaneGates(ctx context.Context, s *store.Store) ([]LaneGate, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[LaneGate], laneGatesSQL)
	if err != nil {
		return nil, fmt.Errorf("read the lanes' gates: %w", err)
	}
	return list, nil
}

// podHealthSQL lists the open pods with the remaining time of their leases. Plan: pods and remote_workers are small.
const podHealthSQL = `
select p.boot::text, p.name, p.version, p.slots, extract(epoch from p.lease_until - clock_timestamp())::float8, p.draining, p.drained,
	w.boot is not null, coalesce(w.stream, 0), extract(epoch from clock_timestamp() - p.started_at)::float8
from trapeze.pods p left join trapeze.remote_workers w on w.boot = p.boot where p.closed_at is null order by p.name, p.boot`

// PodHealth is the health of an open pod.
type PodHealth struct {
	Boot     string
	Name     string
	Version  string
	Slots    int
	Lease    float64 // seconds until it ends; negative: since then
	Draining bool    // it is shutting down
	Drained  bool    // drained by an operator
	Remote   bool    // a remote worker
	Streams  int64   // number that it has opened
	Up       float64 // seconds since it started
}

// ReadPodHealth lists the open pods.
func ReadPodHealth(ctx context.Context, s *store.Store) ([]PodHealth, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[PodHealth], podHealthSQL)
	if err != nil {
		return nil, fmt.Errorf("read how the pods are: %w", err)
	}
	return list, nil
}

// unknownWorkSQL counts, by pod, the jobs that have run for two minutes or longer on a pod that is gone, or that knows fewer than
// that. A remote worker lists its jobs itself. Plan: one pass over live; pods_pkey for the running ones.
const unknownWorkSQL = `
select coalesce(p.name, ''), l.pod::text, count(*)::int, min(l.id), coalesce(p.known_claims, 0), p.boot is null or p.closed_at is not null
from trapeze.live l
left join trapeze.pods p on p.boot = l.pod
where l.state = 'running' and l.claimed_at < now() - interval '2 minutes'
	and (p.boot is null or p.closed_at < now() - interval '1 minute' or p.closed_at is null and p.lease_until > now()
		and not exists (select from trapeze.remote_workers w where w.boot = p.boot))
group by l.pod, p.boot, p.name, p.known_claims, p.closed_at
having p.boot is null or p.closed_at is not null or count(*) > p.known_claims
order by 1, 2`

// UnknownWork counts the jobs of a pod that is gone, or that knows fewer of them.
type UnknownWork struct {
	Pod   string // its name; empty: it has no row
	Boot  string
	Jobs  int   // number that run there, according to the table
	First int64 // the first of them
	Known int   // number that the pod's process knows
	Gone  bool
}

// FindUnknownWork returns pods to which running jobs are assigned that they do not know.
func FindUnknownWork(ctx context.Context, s *store.Store) ([]UnknownWork, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[UnknownWork], unknownWorkSQL)
	if err != nil {
		return nil, fmt.Errorf("look for jobs that run on a pod that does not know them: %w", err)
	}
	return list, nil
}
