package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// BoardWait is a group of jobs that are waiting for the same reason.
type BoardWait struct {
	Lane    string
	Kind    string     // empty if the group combines several kinds
	Why     string     // due, subject, no_handler or pods_drained; if parked, scheduled, retry, snooze, approval or children
	Subject string     // the busy subject that the jobs are waiting for, if any
	Blocker *int64     // the job that is running for that subject
	Jobs    int        // number of jobs, up to the limit
	Since   *time.Time // when the oldest due job became due; if no job is due yet, when the next one becomes due
	First   int64      // the lowest id in the group
	Kinds   int        // number of kinds in the group
}

// boardDueSQL groups the first due jobs in each lane by their individual reason for waiting. Other statements show whether the lane or the
// pods are full, drained or paused. Among the kinds without a handler, the $3 most frequent in each lane have separate groups, and the
// others share one. Plan: the first rows of live_for_claim and of parked_of_lane for each lane, stops at the limit; current_runs_one_running;
// pods is small.
const boardDueSQL = `
with w as materialized (
	select f.* from trapeze.lanes n cross join lateral (
		select w.id, w.lane, w.kind, w.subject, w.ready_at, w.blocked from ` + firstDue + `
	) f
), handled as materialized (
	select d.kind, count(p.id) > 0 as known, count(p.id) filter (where not p.drained and not p.draining) > 0 as open
	from (select distinct kind from w) d
	left join trapeze.pods p on p.closed_at is null and p.lease_until > now() and d.kind = any(p.kinds)
	group by d.kind
), r as (
	select w.id, w.lane, w.kind, w.ready_at, case when not h.known then 'no_handler' when not h.open then 'pods_drained'
			when c.job_id is not null then 'subject' else 'due' end as why,
		case when h.open and c.job_id is not null then w.subject else '' end as subject, case when h.open then c.job_id end as blocker
	from w join handled h on h.kind = w.kind
	left join lateral (
		select x.job_id from trapeze.current_runs x
		where w.blocked and x.kind = w.kind and x.subject = w.subject and x.state = 'running' limit 1
	) c on true
), g as (
	select lane, kind, why, subject, blocker, count(*) as jobs, min(ready_at) filter (where ready_at > 'epoch') as since, min(id) as first,
		why = 'no_handler' and row_number() over (partition by lane, why order by count(*) desc, kind) > $3 as other
	from r group by lane, kind, why, subject, blocker
)` + boardGroups

// boardParkedSQL groups parked jobs by their reason for waiting: a time, an approval or their branches. For each reason and lane, the $3
// most frequent kinds have separate groups, and the others share one. Plan: parked_for_promotion, parked_for_approval and parked_for_branches, each of
// which stops at the limit.
const boardParkedSQL = `
with g as (
	select lane, kind, why, '' as subject, null::bigint as blocker, count(*) as jobs, min(run_after) as since, min(id) as first,
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
select lane, case when other then '' else kind end, why, subject, blocker, sum(jobs)::int, min(since), min(first), count(*)::int
from g group by 1, 2, 3, 4, 5 order by 6 desc, 1, 2, 3, 4 limit $2`

// boardKinds is the number of kinds per lane and reason that have separate groups.
const boardKinds = 10

// BoardWaiting groups waiting jobs by the reason for which they wait. It reads at most eachLane due jobs per lane and at most parkedMost
// parked jobs for a time, for an approval and for branches each, and returns at most limit groups of each. Less frequent kinds share a group, because anyone who can submit jobs can invent
// kinds.
func BoardWaiting(ctx context.Context, s *store.Store, eachLane, parkedMost, limit int) (due, parked []BoardWait, err error) {
	if due, err = store.Rows(ctx, s, pgx.RowToStructByPos[BoardWait], boardDueSQL, eachLane, limit, boardKinds); err != nil {
		return nil, nil, fmt.Errorf("list due jobs: %w", err)
	}
	if parked, err = store.Rows(ctx, s, pgx.RowToStructByPos[BoardWait], boardParkedSQL, parkedMost, limit, boardKinds); err != nil {
		return nil, nil, fmt.Errorf("list parked jobs: %w", err)
	}
	return due, parked, nil
}

// SecondPerson is an SQL condition on a parked job p and its row j in jobs. It is true if the job must be approved by a person other than
// the submitter, because of its lane, the default lane of its kind, or the lane or kind of one of its next steps.
const SecondPerson = `exists (
	select from trapeze.lanes n where n.four_eyes and (n.name in (p.lane, coalesce((select k.lane from trapeze.lane_kinds k where k.kind = p.kind), 'default'))
		or exists (select from json_array_elements(j.planned) s left join trapeze.lane_kinds k on k.kind = s ->> 'kind'
			where n.name in (s ->> 'lane', coalesce(k.lane, 'default'))))
)`

// needsSecondSQL reports whether a job must be approved by a person other than the submitter. Plan: parked_pkey, jobs_pkey; lanes and
// lane_kinds are small.
const needsSecondSQL = `
select ` + SecondPerson + ` from trapeze.parked p join trapeze.jobs j on j.id = p.id where p.id = $1 and p.why = 'approval'`

// NeedsSecond reports whether a job awaits approval that, because of a lane, must come from a person other than the submitter.
func NeedsSecond(ctx context.Context, s *store.Store, id int64) (bool, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[bool], needsSecondSQL, id)
	if err != nil {
		return false, fmt.Errorf("read who may approve job %d: %w", id, err)
	}
	return len(found) > 0 && found[0], nil
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
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[BoardApproval], boardApprovalsSQL, limit)
	if err != nil {
		return nil, fmt.Errorf("list jobs that await approval: %w", err)
	}
	return list, nil
}
