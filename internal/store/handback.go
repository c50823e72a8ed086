package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// handBackSQL returns jobs to their lanes. It spends no attempt and keeps the fence; the next claim sets a new one. A job with a
// subject keeps the subject's guard. It skips a job whose
// cancel request was committed. A pod that has lost a lease holds an old fence, which matches no row. Plan: Index Scan on live_pkey; a HOT
// update, because the statement sets no indexed column.
var handBackSQL = newStatement(`
with mine as materialized (
	select l.id from unnest(@ids::bigint[], @fences::bigint[]) as w(id, fence)
	join trapeze.live l on l.id = any(array[w.id])
	where l.fence = w.fence and l.pod = @pod and not l.cancel_requested
	order by w.id for update of l
), back as (
	update trapeze.live l set state = 'pending', pod = null, attempt = l.attempt - 1, event_no = l.event_no + 1
	from mine m where l.id = any(array[m.id])
	returning l.id, l.fence, l.event_no, l.claim_xid
), events as (
	insert into trapeze.job_events (job, event_no, claim_xid, fence, pod, from_state, to_state, event, message)
	select id, event_no, claim_xid, fence, @pod, 'running', 'pending', 'job.handed_back', @message from back
)
select id from back`)

// HandBack returns claims to their lanes without spending an attempt, and reports which ones it returned. For each of the others, either
// the pod no longer holds the claim or a cancel request was committed.
func (s *Store) HandBack(ctx context.Context, podID string, claims []job.Lease, why string) (map[int64]bool, error) {
	ids, fences := split(claims)
	found, err := run(ctx, s, pgx.RowTo[int64], handBackSQL, args{{"pod", podID}, {"message", why}, {"ids", ids}, {"fences", fences}})
	if err != nil {
		return nil, fmt.Errorf("hand back: %w", err)
	}
	return set(found), nil
}

// heldSQL lists the claims that the table assigns to the given pods. It runs only after a reply was lost, or when remote workers have moved
// to this pod from another one. Plan: a single pass over live by its primary key, regardless of the number of pods; jobs_pkey for their
// claims.
var heldSQL = newStatement(`
select l.pod::text, l.id, l.fence, l.cancel_requested, j.pipeline_id, l.kind, l.lane, l.subject, l.attempt, j.group_id, j.child_no, j.impaired
from trapeze.live l join trapeze.jobs j on j.id = l.id where l.pod = any(@pods::uuid[]) order by l.id`)

// Held is a claim that the table assigns to a pod.
type Held struct {
	Pod                 string
	ID, Fence           int64
	CancelRequested     bool
	PipelineID          int64
	Kind, Lane, Subject string
	Attempt             int
	Branch
}

// Held lists the claims that the table assigns to the given pods, including claims that the pods' processes do not know about.
func (s *Store) Held(ctx context.Context, podIDs ...string) ([]Held, error) {
	list, err := run(ctx, s, pgx.RowToStructByPos[Held], heldSQL, args{{"pods", podIDs}})
	if err != nil {
		return nil, fmt.Errorf("list the claims of pods %v: %w", podIDs, err)
	}
	return list, nil
}
