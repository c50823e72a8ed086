package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// claimOutcomeSQL reads the outcomes of claims. A next step that was started on insert has its transaction's time as both its ready time
// and its claim time. If the two differ, the step has been claimed again and belongs to the later claim, even if this pod made that claim.
// A job can end twice with the same fence if an operator retries it and then cancels it before its next claim. In that case, the end that
// the pod wrote takes precedence. Results are read only on request, because they may be large. Plan: lookups by primary key and in
// the id index of done; with exists in the select list, PostgreSQL 18 would hash whole tables.
var claimOutcomeSQL = newStatement(`
select w.id, w.fence, coalesce(l.pod = @pod::uuid, false), l.id is not null and l.pod is null,
	coalesce((select true from trapeze.parked p where p.id = w.id and p.fence = w.fence limit 1), false),
	coalesce((select true from trapeze.fan_outs f where f.id = w.id and f.fence = w.fence limit 1), false),
	d.state, d.reason, case when @results::boolean then d.result end,
	coalesce(d.pod = @pod::uuid, false), coalesce(d.pod = @pod::uuid and d.xid is not null, false),
	coalesce((select true from trapeze.live l where l.id = w.child and l.fence = 1 and l.pod = @pod::uuid
		and l.claimed_at = l.ready_at limit 1), false),
	case when l.id is null and d.state is null then `, deleted, ` else false end
from unnest(@ids::bigint[], @fences::bigint[], @children::bigint[]) as w(id, fence, child)
left join lateral (select l.id, l.pod from trapeze.live l where l.id = w.id and l.fence = w.fence limit 1) l on true
left join lateral (select d.state, d.reason, d.result, d.pod, d.xid from trapeze.done d where d.id = w.id and d.fence = w.fence
	order by d.pod = @pod::uuid desc nulls last limit 1) d on true`)

// ClaimOutcome is the outcome of a claim, read back after the reply to a write was lost. If only ID and Fence are set, the claim was lost
// and the job has been claimed again.
type ClaimOutcome struct {
	ID, Fence int64

	Held      bool // the claim is still active; nothing was written
	Pending   bool // the job was handed back or recovered, and has not been claimed since
	Parked    bool // the job is waiting for another attempt or for its branches
	FannedOut bool // the claim fanned out
	Deleted   bool // the job has been deleted

	State    *job.State      // state in which the job ended; nil if it has not ended with this fence
	Reason   *job.Reason     // reason for the state
	Result   json.RawMessage // the job's result, only if results were requested
	ByPod    bool            // the pod ended the job under its claim
	ByFinish bool            // the job was ended by [Store.Finish] or [Store.EndWaiting], not by a command, recovery or maintenance

	NextRunning bool // the next step was started on insert for this pod; no claim returns it, so the caller must run it
}

// ClaimOutcomes returns the outcomes of a pod's claims by job id. next[i] is the id of the next step of claims[i], or of any other job that
// this pod may have started on insert, or 0 if there is no such job. next is nil if no claim has one.
func (s *Store) ClaimOutcomes(ctx context.Context, podID string, claims []job.Lease, next []int64, results bool) (map[int64]ClaimOutcome, error) {
	ids, fences := split(claims)
	if next == nil {
		next = make([]int64, len(claims))
	}
	found, err := run(ctx, s, scanClaimOutcome, claimOutcomeSQL,
		args{{"ids", ids}, {"fences", fences}, {"pod", podID}, {"children", next}, {"results", results}})
	if err != nil {
		return nil, fmt.Errorf("read back claims: %w", err)
	}
	byID := make(map[int64]ClaimOutcome, len(found))
	for _, c := range found {
		byID[c.ID] = c
	}
	return byID, nil
}

// ClaimOutcome returns the outcome of one claim, with its result and without a next step. See [Store.ClaimOutcomes].
func (s *Store) ClaimOutcome(ctx context.Context, l job.Lease) (ClaimOutcome, error) {
	found, err := s.ClaimOutcomes(ctx, l.Pod, []job.Lease{l}, nil, true)
	return found[l.JobID], err
}

func scanClaimOutcome(row pgx.CollectableRow) (c ClaimOutcome, err error) {
	var result []byte
	err = row.Scan(&c.ID, &c.Fence, &c.Held, &c.Pending, &c.Parked, &c.FannedOut, &c.State, &c.Reason, &result, &c.ByPod, &c.ByFinish, &c.NextRunning, &c.Deleted)
	c.Result = result
	return c, err
}
