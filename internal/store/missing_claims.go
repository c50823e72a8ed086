package store

import (
	"context"
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
