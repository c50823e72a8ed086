package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// missingClaimsSQL checks the claims that a process is working on, and selects those that the table no longer assigns to it. If a command
// ended a claim, the row contains the command's reason. The statement returns nothing on a standby, which may lag behind. Plan: a probe of
// live_pkey per claim, and probes of cancel_requests and by primary keys for each missing one.
var missingClaimsSQL = newStatement(`
select w.id, w.fence, coalesce((select c.reason from trapeze.cancel_requests c where c.pod = @pod and c.job_id = w.id and c.fence = w.fence), ''),
	`, deleted, `
from unnest(@ids::bigint[], @fences::bigint[]) as w(id, fence)
where not pg_is_in_recovery()
	and not exists (select from trapeze.live l where l.id = w.id and l.fence = w.fence and l.pod = @pod::uuid offset 0)`)

// MissingClaim is a claim that a process is still working on even though the table no longer assigns it to the process.
type MissingClaim struct {
	ID, Fence int64
	Reason    job.Reason // stopped or deadline; empty if no command is recorded as having ended the claim
	Deleted   bool       // the job has been deleted
}

// MissingClaims returns those of a pod's claims that the table no longer assigns to it.
func MissingClaims(ctx context.Context, s *Store, podID string, claims []job.Lease) ([]MissingClaim, error) {
	ids, fences := split(claims)
	list, err := run(ctx, s, pgx.RowToStructByPos[MissingClaim], missingClaimsSQL, args{{"pod", podID}, {"ids", ids}, {"fences", fences}})
	if err != nil {
		return nil, fmt.Errorf("compare the claims of pod %s with the table: %w", podID, err)
	}
	return list, nil
}

// noteStartedSQL records the start times of jobs that were claimed ahead of time. From then on, a crash of the pod counts against the job.
// It skips rows that are locked by a handler's transaction. Plan: live_pkey, twice per row; a HOT update.
var noteStartedSQL = newStatement(`
with own as materialized (
	select l.id, w.started from unnest(@ids::bigint[], @fences::bigint[], @started::timestamptz[]) as w(id, fence, started)
	join trapeze.live l on l.id = any(array[w.id])
	where l.fence = w.fence and l.pod = @pod and l.started_at is null
	order by w.id for update of l skip locked
)
update trapeze.live l set started_at = o.started from own o where l.id = any(array[o.id]) returning l.id`)

// NoteStarted records the time at which each handler was called, for jobs that were claimed ahead of time. It returns the ids of the jobs
// whose start times were recorded.
func NoteStarted(ctx context.Context, s *Store, podID string, claims []job.Lease, started []time.Time) ([]int64, error) {
	ids, fences := split(claims)
	noted, err := run(ctx, s, pgx.RowTo[int64], noteStartedSQL, args{{"pod", podID}, {"ids", ids}, {"fences", fences}, {"started", started}})
	if err != nil {
		return nil, fmt.Errorf("record the starts of claims: %w", err)
	}
	return noted, nil
}

// heldPageSQL lists claims of the given pods that are older than a given age, within one page of live. If there are none, it returns one
// row with id 0. Plan: Index Scan on live_pkey over the page.
var heldPageSQL = newStatement(`
with page as materialized (
	select l.id, l.fence, l.pod, l.claimed_at from trapeze.live l where l.id > @after order by l.id limit @limit
), read as (
	select coalesce(max(id), @after) as last, count(*) as seen from page
)
select r.last, r.seen, coalesce(p.pod::text, ''), coalesce(p.id, 0), coalesce(p.fence, 0)
from read r left join page p on p.pod = any(@pods::uuid[]) and p.claimed_at < now() - @age::bigint * interval '1 millisecond'`)

// HeldPage is the result of scanning one page of live.
type HeldPage struct {
	Last   int64 // the last id that was read
	Full   bool  // more rows may follow
	Claims []job.Lease
}

// ReadHeldPage scans the first limit rows of live whose ids are greater than after. Among these rows, it returns the given pods' claims
// that are older than age.
func ReadHeldPage(ctx context.Context, s *Store, podIDs []string, after int64, limit int, age time.Duration) (HeldPage, error) {
	type row struct {
		Last      int64
		Seen      int
		Pod       string
		ID, Fence int64
	}
	list, err := run(ctx, s, pgx.RowToStructByPos[row], heldPageSQL, args{{"pods", podIDs}, {"after", after}, {"limit", limit}, {"age", age.Milliseconds()}})
	if err != nil {
		return HeldPage{}, fmt.Errorf("list the claims of pods %v: %w", podIDs, err)
	}
	page := HeldPage{Last: list[0].Last, Full: list[0].Seen >= limit}
	for _, r := range list {
		if r.ID != 0 {
			page.Claims = append(page.Claims, job.Lease{JobID: r.ID, Fence: r.Fence, Pod: r.Pod})
		}
	}
	return page, nil
}

// knownClaimsSQL records the number of claims known to a pod's process. Plan: pods_pkey, one row; a HOT update.
var knownClaimsSQL = newStatement(`update trapeze.pods set known_claims = @known where id = @pod and ` + stillOpen + ` returning known_claims`)

// ReportKnownClaims records the number of claims that a pod's process has been working on for some time. [view.FindUnknownWork] reads it.
func ReportKnownClaims(ctx context.Context, s *Store, podID string, known int) error {
	if _, err := run(ctx, s, pgx.RowTo[int], knownClaimsSQL, args{{"pod", podID}, {"known", known}}); err != nil {
		return fmt.Errorf("record the number of claims of pod %s: %w", podID, err)
	}
	return nil
}

// goneSQL returns the job if it has been deleted. It runs only after a write was rejected. Plan: probes of the primary keys and of the id index of done.
var goneSQL = newStatement("select w.id from (select @id::bigint as id) w where ", deleted)

// deleted is the condition that w.id has no row in jobs, or no row in any of live, parked and done.
const deleted = `((select true from trapeze.jobs j where j.id = w.id limit 1) is null
	or coalesce((select true from trapeze.live l where l.id = w.id limit 1), (select true from trapeze.parked p where p.id = w.id limit 1),
		(select true from trapeze.done d where d.id = w.id limit 1)) is null)`

// Lost returns the reason why a claim's write was rejected: [job.ErrGone] if the job has been deleted, and [job.ErrLeaseLost] otherwise. If
// the reason cannot be determined, it returns [job.ErrLeaseLost].
func (s *Store) Lost(ctx context.Context, l job.Lease) error { return lostIn(ctx, s, nil, l) }

// lostIn is like [Store.Lost] but runs in the caller's transaction, unless db is nil.
func lostIn(ctx context.Context, s *Store, db DB, l job.Lease) error {
	if gone, err := QueryOrRows(ctx, s, db, pgx.RowTo[int64], goneSQL.text, l.JobID); err == nil && len(gone) > 0 {
		return job.ErrGone
	}
	return job.ErrLeaseLost
}

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
