package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// WorkerRow is a remote worker's row.
type WorkerRow struct {
	Stream int64  // number of the latest stream
	Key    []byte // key that signs the worker's assignments
	Owner  string // principal that is allowed to act for the worker
	Open   bool
	Left   bool // the row is closed because the worker left, not because its lease expired
	// Acknowledged holds the claims listed in the latest heartbeat that reached a pod other than the one serving the stream, as pairs of
	// job id and fence.
	Acknowledged []int64
}

// openWorkerSQL opens a remote worker's row, or takes over an open row and supersedes the worker's previous stream. Like a heartbeat, it
// renews even an expired lease, unless another pod has already closed the row to recover the worker's jobs. It returns no row if the
// existing row is closed, belongs to another principal, or does not belong to a remote worker. Plan: pods_pkey, remote_workers_pkey; both
// are small.
var openWorkerSQL = newStatement(`
with mine as (
	update trapeze.remote_workers w set stream = w.stream + 1, policies = @policies
	from trapeze.pods p where w.pod = @pod::uuid and p.id = w.pod and ` + stillOpen + ` and w.owner = @owner
	returning w.pod, w.stream, w.stream_key, w.acknowledged
), known as (
	update trapeze.pods p set name = @name, version = @version, kinds = @kinds, slots = @slots, limits = @limits, draining = false,
		lease_until = now() + @lease::bigint * interval '1 millisecond'
	from mine m where p.id = m.pod and ` + stillOpen + `
	returning m.stream, m.stream_key, m.acknowledged
), joined as (
	insert into trapeze.pods (id, name, version, kinds, slots, limits, lease_until, drained)
	select @pod::uuid, @name::text, @version::text, @kinds::text[], @slots::int, @limits::jsonb, now() + @lease::bigint * interval '1 millisecond',
		coalesce((select o.drained from trapeze.pods o where o.name = @name order by o.started_at desc limit 1), false)
	where not exists (select from trapeze.pods where id = @pod)
	on conflict (id) do nothing
	returning id
), signed as (
	insert into trapeze.remote_workers (pod, owner, stream_key, policies) select id, @owner::text, @key::bytea, @policies::jsonb from joined returning stream, stream_key, acknowledged
), events as (
	insert into trapeze.job_events (event_no, pod, event, message) select 1, id, 'pod.joined', @name from joined
)
select stream, stream_key, @owner::text, true, false, acknowledged from known union all select stream, stream_key, @owner::text, true, false, acknowledged from signed`)

// OpenWorker opens a remote worker's row for a new stream, or takes over the open row and its key. policies is JSON to be returned by
// [WorkerPolicies]. OpenWorker returns [job.ErrLeaseLost] if the row is closed or belongs to another principal.
func OpenWorker(ctx context.Context, s *Store, p PodInfo, owner string, key []byte, policies json.RawMessage, lease time.Duration) (WorkerRow, error) {
	for last := false; ; last = true {
		found, err := run(ctx, s, pgx.RowToStructByPos[WorkerRow], openWorkerSQL, args{{"pod", p.PodID}, {"name", p.Name}, {"version", p.Version}, {"kinds", p.Kinds}, {"slots", p.Slots}, {"limits", p.Limits}, {"lease", lease.Milliseconds()}, {"owner", owner}, {"key", key}, {"policies", policies}})
		if err != nil {
			return WorkerRow{}, fmt.Errorf("open the row of worker %s: %w", p.PodID, err)
		}
		if len(found) > 0 {
			return found[0], nil
		}
		// A concurrent earlier stream may have inserted the row after the statement took its snapshot. The next attempt then takes that row
		// over.
		row, err := Worker(ctx, s, p.PodID)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return WorkerRow{}, err
		}
		if last || err != nil || !row.Open || row.Owner != owner {
			return WorkerRow{}, fmt.Errorf("open the row of worker %s: %w", p.PodID, job.ErrLeaseLost)
		}
	}
}

// workerSQL reads a remote worker's row. Plan: primary key lookups, one row.
var workerSQL = newStatement(`
select w.stream, w.stream_key, w.owner, p.closed_at is null, coalesce(p.closed = 'left', false), w.acknowledged from trapeze.remote_workers w join trapeze.pods p on p.id = w.pod
where w.pod = @pod`)

// Worker returns a remote worker's row, or [job.ErrNotFound] if there is none.
func Worker(ctx context.Context, s *Store, podID string) (WorkerRow, error) {
	found, err := run(ctx, s, pgx.RowToStructByPos[WorkerRow], workerSQL, args{{"pod", podID}})
	if err != nil {
		return WorkerRow{}, fmt.Errorf("read the row of worker %s: %w", podID, err)
	}
	if len(found) == 0 {
		return WorkerRow{}, fmt.Errorf("read the row of worker %s: %w", podID, job.ErrNotFound)
	}
	return found[0], nil
}

// acknowledgeSQL stores the claims listed in a heartbeat that reached a pod other than the one serving the stream. Plan:
// remote_workers_pkey, one row.
var acknowledgeSQL = newStatement(`update trapeze.remote_workers set acknowledged = @claims where pod = @pod and acknowledged <> @claims returning stream`)

// Acknowledge stores the claims that a worker's heartbeat listed. The pod that serves the worker's stream reads them from
// WorkerRow.Acknowledged.
func Acknowledge(ctx context.Context, s *Store, podID string, claims []job.Lease) error {
	list := make([]int64, 0, 2*len(claims))
	for _, c := range claims {
		list = append(list, c.JobID, c.Fence)
	}
	if _, err := run(ctx, s, pgx.RowTo[int64], acknowledgeSQL, args{{"pod", podID}, {"claims", list}}); err != nil {
		return fmt.Errorf("store the claims of worker %s: %w", podID, err)
	}
	return nil
}

// workerPoliciesSQL reads the options that a remote worker sent for its kinds. Plan: remote_workers_pkey, one row.
var workerPoliciesSQL = newStatement(`select policies from trapeze.remote_workers where pod = @pod`)

// WorkerPolicies returns the policies that [OpenWorker] stored, or [job.ErrNotFound] if there are none.
func WorkerPolicies(ctx context.Context, s *Store, podID string) (json.RawMessage, error) {
	found, err := run(ctx, s, pgx.RowTo[[]byte], workerPoliciesSQL, args{{"pod", podID}})
	if err != nil {
		return nil, fmt.Errorf("read the policies of worker %s: %w", podID, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("read the policies of worker %s: %w", podID, job.ErrNotFound)
	}
	return found[0], nil
}

// WorkerHeartbeat is like [Store.Heartbeat] for a remote worker. It is called by the pod that serves the given stream. It renews the lease
// only if heard is true, which means that the worker has sent a heartbeat.
func WorkerHeartbeat(ctx context.Context, s *Store, podID string, lease time.Duration, draining bool, stream int64, heard bool) (Beat, error) {
	return beat(ctx, s, podID, lease, draining, stream, heard, nil)
}

// claimsToAdoptSQL reads everything that another pod needs to continue running claims. Plan: primary key lookups, one row of live and of
// jobs for each claim.
var claimsToAdoptSQL = newStatement(`
select l.id, l.kind, l.lane, l.subject, coalesce(j.key, ''), j.args, j.pipeline_id, j.parent_id, j.step, j.planned, j.max_attempts, j.max_crashes,
	j.submitter, l.priority, l.fence, l.epoch, l.attempt, l.crashes, l.isolated, l.claimed_at, l.ready_at, coalesce(l.due_at, l.ready_at), j.created_at,
	(select g.checkpoint from trapeze.job_progress g where g.id = l.id), j.group_id, j.child_no, j.impaired,
	coalesce((select g.snoozes from trapeze.job_progress g where g.id = l.id), 0), coalesce(j.traceparent, ''), l.cancel_requested,
	(extract(epoch from now() - l.claimed_at) * 1000)::bigint
from unnest(@ids::bigint[], @fences::bigint[]) as w(id, fence)
join trapeze.live l on l.id = any(array[w.id])
join trapeze.jobs j on j.id = l.id
where l.fence = w.fence and l.pod = @pod::uuid`)

// Adopted is a running claim that another pod continues.
type Adopted struct {
	Claimed
	CancelRequested bool
	Ran             time.Duration // time since the claim
}

// ClaimsToAdopt returns the given claims that the pod or worker still holds.
func ClaimsToAdopt(ctx context.Context, s *Store, podID string, claims []job.Lease) ([]Adopted, error) {
	ids, fences := make([]int64, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		ids[i], fences[i] = c.JobID, c.Fence
	}
	list, err := run(ctx, s, scanAdopted, claimsToAdoptSQL, args{{"pod", podID}, {"ids", ids}, {"fences", fences}})
	if err != nil {
		return nil, fmt.Errorf("read the claims of worker %s: %w", podID, err)
	}
	return list, nil
}

func scanAdopted(row pgx.CollectableRow) (a Adopted, err error) {
	c := &a.Claimed
	var args, planned, checkpoint []byte
	var ran int64
	err = row.Scan(&c.ID, &c.Kind, &c.Lane, &c.Subject, &c.Key, &args, &c.PipelineID, &c.ParentID, &c.Step, &planned, &c.MaxAttempts, &c.MaxCrashes,
		&c.Submitter, &c.Priority, &c.Fence, &c.Epoch, &c.Attempt, &c.Crashes, &c.Isolated, &c.ClaimedAt, &c.ReadyAt, &c.DueAt, &c.CreatedAt,
		&checkpoint, &c.Group, &c.No, &c.Impaired, &c.Snoozes, &c.Trace, &a.CancelRequested, &ran)
	a.Ran = time.Duration(ran) * time.Millisecond
	c.Args, c.Planned, c.Checkpoint, c.Path = args, planned, checkpoint, "poll"
	return a, err
}
