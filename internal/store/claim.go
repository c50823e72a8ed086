package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Definition is the part of a job that does not change while it runs: the columns of its row in jobs, apart from the id.
type Definition struct {
	Kind       string
	Subject    string
	Args       json.RawMessage
	PipelineID int64
	ParentID   *int64
	Step       int
	Branch
	Planned     json.RawMessage // the planned steps, as []work.Step; nil if there are none
	MaxAttempts *int            // nil means the kind's setting
	MaxCrashes  *int            // nil means the kind's setting
	Submitter   string
	Trace       string    // trace context of the submission, as a traceparent; empty if there is none
	CreatedAt   time.Time // time of submission
}

// Claimed is a job that this pod has just claimed, with the data needed to run it.
type Claimed struct {
	ID int64
	Definition
	Lane       string
	Priority   int
	Fence      int64
	Epoch      int
	Attempt    int // number of this attempt, counted from 1
	Crashes    int
	Isolated   bool
	ClaimedAt  time.Time
	ReadyAt    time.Time
	Checkpoint json.RawMessage // nil if there is none
	Snoozes    int             // number of times the handler has snoozed the job
	Path       string          // "fast" or "poll"
	Ahead      bool            // claimed ahead of time, before a slot was free
}

// Late reports whether the job was claimed a minute or more after its submission.
func (c *Claimed) Late() bool { return c.ClaimedAt.Sub(c.CreatedAt) >= time.Minute }

// Want is a request to claim jobs in one lane.
type Want struct {
	Lane  string
	N     int           // number of jobs for free slots
	Ahead int           // number of jobs to claim ahead of time, in addition to N; only of the kinds listed as short
	Since time.Time     // skip jobs that became ready before this time; zero skips none
	After *LanePosition // skip jobs up to and including this position; less urgent ranks start at Since; nil skips none
	Above *int          // read only the ranks below this one, which are more urgent; nil reads all
}

// LanePosition is a job's position in the order in which its lane's jobs are claimed.
type LanePosition struct {
	Rank    int // the negated priority
	ReadyAt time.Time
	ID      int64
}

// Compare returns a negative number if p comes before q, and a positive one if it comes after q.
func (p LanePosition) Compare(q LanePosition) int {
	return cmp.Or(cmp.Compare(p.Rank, q.Rank), p.ReadyAt.Compare(q.ReadyAt), cmp.Compare(p.ID, q.ID))
}

// Behind reports whether p comes after q.
func (p LanePosition) Behind(q LanePosition) bool { return p.Compare(q) > 0 }

// Position returns the job's position in its lane.
func (c *Claimed) Position() LanePosition {
	return LanePosition{Rank: -c.Priority, ReadyAt: c.ReadyAt, ID: c.ID}
}

// Reached reports how far a claim read into a lane in which it found fewer jobs than wanted.
type Reached struct {
	Last  *LanePosition // the last row read, if more rows follow it; otherwise nil
	Fresh time.Time     // jobs submitted after the claim become ready after this time
}

// Claims is the result of one claim statement.
type Claims struct {
	Jobs []*Claimed
	// Seen is the number of jobs that were locked. If it exceeds len(Jobs), some of those jobs could not be claimed because their subject
	// or key was taken, and another claim may find more jobs behind them.
	Seen int
	Took time.Duration // execution time on the server
	// Reached has an entry for each lane in which the claim found fewer jobs than wanted.
	Reached map[string]Reached
}

// Some reports whether any job of the lane was claimed.
func (c Claims) Some(lane string) bool {
	return slices.ContainsFunc(c.Jobs, func(claimed *Claimed) bool { return claimed.Lane == lane })
}

// Exhausted returns the lanes that the claim has read to the end.
func (c Claims) Exhausted() (lanes []string) {
	for lane, reached := range c.Reached {
		if reached.Last == nil {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

// A claim statement is a list of CTEs. picked locks pending rows for free slots, spare locks additional rows to claim ahead of time, and
// reached reports how far picked has read. These three differ between the claim statements. The other CTEs claim the locked rows in the
// order keyed → open → taken → claimed, free keys, delete superseded runs and write events. Only claimed updates live, with a HOT update.
//
// Some locked rows stay pending, and no attempt is counted for them: jobs whose unique key is locked by an uncommitted submission, all but
// one of the isolated jobs, and jobs whose subject another job has taken. Subjects are taken in key order, so two claims cannot deadlock.
// Of the jobs with the same (kind, subject), only the most urgent one is claimed.

// claimStatement builds a claim statement from its picked, spare and reached CTEs. With an empty spare, it claims no jobs ahead of time.
// The conditions in more are added to both picked and reached, so that a claim that must not take any job does not report its lanes as
// read.
func claimStatement(picked, spare, reached string, more ...string) *statement {
	all := strings.Join(more, "")
	parts := []string{"picked as materialized (" + picked + all + "\n)"}
	locked, seen, started := "picked", "(select count(*) from picked)", startsNow
	if spare != "" {
		parts = append(parts, "spare as materialized ("+spare+"\n)")
		locked, seen, started = "(select * from picked union all select * from spare)", seen+" + (select count(*) from spare)", startsLater
	}
	parts = append(parts, "reached as ("+reached+all+"\n)", claimKeyed, claimOpen(locked), claimTaken, claimSuperseded, claimUpdate(started),
		claimFreed, claimEvents)
	return newStatement(with(parts...), "select "+seen+" as seen, "+claimRows)
}

// claimSQL claims up to the wanted number of jobs in each lane: the most urgent due ones of the kinds that this pod handles. It skips jobs
// whose subject is running in the snapshot, so that they neither block nor hide the jobs behind them. A pod whose row is closed claims
// nothing. The offset 0 keeps the planner from reading all running subjects into a hash table. Instead, each row costs one probe of
// current_runs_one_running.
//
// A claim reads at most [ClaimReach] more pending rows than it wants, shared among its lanes. It reads them without locks, and stops as
// soon as it has found enough. It then locks, by primary key, each row that it may claim, and rechecks the row's latest version. The
// reached CTE lists the lanes in which fewer jobs were found than wanted. For each of them it returns the last row within the lane's share,
// or nulls if the lane has fewer rows. [claimSinceSQL] continues behind that row.
//
// Plan: per lane, an Index Scan on live_for_claim that stops at the wanted number or at the share. Each row that may be claimed costs one
// probe of live_pkey, with LockRows above it. A lane in which too few jobs were found costs one more Index Scan, up to the share. Finally,
// each job costs one primary key probe in live and one in jobs. The number of rows touched grows with the wanted number and with the lane's
// running jobs, not with the backlog.
//
// claimSinceSQL is like claimSQL but skips jobs that became ready before a given time. In each rank it starts reading at that time, because
// finished jobs' dead rows may come before it. Otherwise, as long as a transaction holds an old snapshot, every scan would reread those
// dead rows. If a position is given for a lane, the claim continues behind it, and reads the less urgent ranks from the given time on. The
// nested loops visit the ranks in order and stop at the limit.
//
// Plan: per lane and rank, an Index Scan on live_for_claim from (lane, rank, time, id); otherwise the same as for claimSQL.
//
// claimAheadSQL and claimSinceAheadSQL are like claimSQL and claimSinceSQL but also claim jobs ahead of time. They are separate statements
// because the spare CTE makes a claim more expensive even if it is not read. Plans: the same, plus a second Index Scan per lane for the
// spare CTE.
//
// claimSubjectsSQL claims the most urgent due job of each (kind, subject) whose run has just ended, in the given lanes.
//
// Plan: per key, an ordered Index Scan on live_for_subject that stops at the first pending row.
var (
	claimSQL           = claimStatement(claimPick, "", claimReached)
	claimAheadSQL      = claimStatement(claimPick, claimSpare, claimReached)
	claimSinceSQL      = claimStatement(claimSincePick, "", claimSinceReached)
	claimSinceAheadSQL = claimStatement(claimSincePick, claimSinceSpare, claimSinceReached)
	claimSubjectsSQL   = claimStatement(claimSubjectsPick, "", claimSubjectsReached)
)

// Claims for a remote worker are the same as claims for a pod, but only the pod that serves the worker's latest stream may make them.
// Otherwise, a pod that has not yet noticed that the worker has reconnected elsewhere would claim jobs for slots that the worker's new pod
// also fills. Plans: the same as for the claims above, plus a probe of remote_workers_pkey.
var (
	workerClaimSQL    = claimStatement(claimPick, "", claimReached, latestStream)
	workerSinceSQL    = claimStatement(claimSincePick, "", claimSinceReached, latestStream)
	workerSubjectsSQL = claimStatement(claimSubjectsPick, "", claimSubjectsReached, latestStream)
)

// ClaimReach is the maximum number of pending rows that a claim reads beyond the wanted number, across all lanes. If the claim continues in
// some of its lanes, the continuation reads up to ClaimReach more rows in those lanes.
const ClaimReach = 1000

const (
	claimPick = `
	select c.* from ` + lanesWanted + `
	cross join lateral (
		select k.*
		from (select l.id, ` + claimable + ` as ok` + laneRows + ` limit w.want + ` + laneShare + `) l cross join lateral (` + stillClaimable + `) k
		where l.ok
		limit w.want
	) c
	where ` + mayClaim

	claimReached = `
	select w.lane, e.rank, e.ready_at, e.id, ` + freshSince + ` as fresh from ` + lanesWanted + `
	left join lateral (
		select (-l.priority) as rank, l.ready_at, l.id` + laneRows + ` offset w.want + ` + laneShare + ` - 1 limit 1
	) e on true
	where ` + notFilled + ` and ` + mayClaim

	// claimSpare locks the rows to be claimed ahead of time, in lane order. It reads at most 200 rows beyond the wanted number, so that it
	// costs little in a lane whose first job has to wait for a slot. Plan: the same as for claimPick; reads nothing in lanes in which no
	// jobs are to be claimed ahead of time.
	claimSpare = `
	select c.* from ` + lanesWanted + `
	cross join lateral (
		select k.* from (` + untilBlocked + `select l.id, ` + mayWait + ` as ok, ` + claimable + ` as claimable` + laneRows + ` limit w.want + w.ahead + least(200, ` + laneShare + `)` + unpicked + `) l cross join lateral (` + stillMayWait + `) k
		where l.ok
		limit w.ahead
	) c
	where w.ahead > 0 and ` + mayClaim

	lanesWanted = `unnest(@lanes::text[], @wants::int[], @aheads::int[]) as w(lane, want, ahead)`

	// laneRows selects a lane's pending jobs, the most urgent first.
	laneRows = ` from trapeze.live l where l.lane = w.lane and l.state = 'pending'
			order by l.lane, (-l.priority), l.ready_at, l.id`
	laneShare = `1000 / cardinality(@lanes::text[])`
)

const (
	claimSincePick = `
	select c.* from ` + lanesSince + `
	cross join lateral (
		select k.*
		from (select r.id, r.ok from ` + AllRanks + ` cross join lateral (select l.id, ` + claimable + ` as ok` + rankRows + `) r
			where rank >= w.after_rank and rank < w.above limit w.want + w.reach) l cross join lateral (` + stillClaimable + `) k
		where l.ok
		limit w.want
	) c
	where ` + mayClaim

	// claimSinceSpare is like claimSpare but starts at the given time. Plan: the same as for claimSincePick; reads nothing if no jobs are
	// to be claimed ahead of time.
	claimSinceSpare = `
	select c.* from ` + lanesSince + `
	cross join lateral (
		select k.* from (` + untilBlocked + `select r.* from ` + AllRanks + ` cross join lateral (select l.id, ` + mayWait + ` as ok, ` + claimable + ` as claimable` + rankRows + ` + w.ahead) r
			where rank >= w.after_rank and rank < w.above limit w.want + w.ahead + least(200, w.reach)` + unpicked + `) l cross join lateral (` + stillMayWait + `) k
		where l.ok
		limit w.ahead
	) c
	where w.ahead > 0 and ` + mayClaim

	claimSinceReached = `
	select w.lane, e.rank, e.ready_at, e.id, ` + freshSince + ` as fresh from ` + lanesSince + `
	left join lateral (
		select rank, r.ready_at, r.id from ` + AllRanks + ` cross join lateral (select l.ready_at, l.id` + rankRows + `) r
		where rank >= w.after_rank and rank < w.above offset w.want + w.reach - 1 limit 1
	) e on true
	where ` + notFilled + ` and ` + mayClaim

	lanesSince = `unnest(@lanes::text[], @wants::int[], @aheads::int[], @since::timestamptz[], @after_ranks::int[], @after_ready::timestamptz[], @after_ids::bigint[], @reach::int[],
		@above::int[]) as w(lane, want, ahead, since, after_rank, after_ready, after_id, reach, above)`

	// rankRows selects the pending jobs in one rank of a lane that come after the position or, if the position is in another rank, became
	// ready at or after the given time.
	rankRows = ` from trapeze.live l where l.lane = w.lane and (-l.priority) = rank and l.state = 'pending'
				and (l.ready_at, l.id) > (case when rank = w.after_rank then w.after_ready else w.since end,
					case when rank = w.after_rank then w.after_id else 0 end)
				order by l.lane, (-l.priority), l.ready_at, l.id limit w.want + w.reach`
)

const (
	claimSubjectsPick = `
	select c.* from unnest(@kinds::text[], @subjects::text[]) as w(kind, subject)
	cross join lateral (
		select ` + claimColumns + ` from trapeze.live k
		where k.kind = w.kind and k.subject = w.subject and k.subject <> '' and k.state = 'pending'
			and k.lane = any(@lanes::text[]) and not k.isolated
		order by (-k.priority), k.ready_at, k.id
		limit 1 for update of k skip locked
	) c
	where ` + mayClaim + `
		and not exists (select from trapeze.current_runs r
			where r.kind = c.kind and r.subject = c.subject and r.state = 'running' offset 0)`

	// claimSubjectsReached returns no rows, because the claim by subject does not read beyond the first job of a subject.
	claimSubjectsReached = `
	select null::text as lane, null::int as rank, null::timestamptz as ready_at, null::bigint as id, null::timestamptz as fresh where false`
)

const (
	claimColumns = `k.id, k.kind, k.subject, k.fence, k.priority, k.ready_at, k.isolated, k.unique_while, k.lane`
	// mayWait is the condition under which a row may be claimed before a slot is free. Only a job's first claim may be made that early.
	mayWait = `l.fence = 0 and l.subject = '' and l.unique_while is null and l.kind = any(@short::text[])`
	// untilBlocked and unpicked exclude all rows behind the first one that this pod may claim but not ahead of time, so that no job
	// overtakes the job in that row. The window function works row by row and reads no further than the claim does.
	untilBlocked = `select id, ok and not bool_or(claimable and not ok) over (rows unbounded preceding) as ok from (`
	unpicked     = `) r where id not in (select id from picked)`
	// stillMayWait locks a row that can be claimed ahead of time and checks its latest version. It is a subquery so that the planner cannot
	// choose the order in which the tables are read.
	stillMayWait = `
			select ` + claimColumns + ` from trapeze.live k where k.id = l.id and k.state = 'pending' and k.fence = 0 and (k.lane = w.lane) is true
			for update skip locked`
	// mayClaim is a condition of every claim statement: the pod's row must be open and not drained. A pod may have sent the claim just before
	// an operator drained the pod.
	mayClaim = `exists (select from trapeze.pods where id = @pod and not drained and ` + stillOpen + `)`
	// latestStream is the condition that this pod serves the worker's latest stream.
	latestStream = ` and (select w.stream from trapeze.remote_workers w where w.pod = @pod) = @stream::bigint`
	// notFilled is the condition that fewer jobs than wanted were picked in a lane.
	notFilled = `(select count(*) from picked p where p.lane = w.lane) < w.want`
	// claimable is the condition under which this pod may claim a pending row.
	claimable = `l.kind = any(@kinds::text[]) and (not l.isolated or @isolated::boolean) and ` + subjectRests
	// stillClaimable is like stillMayWait, for a row that this pod may claim. The lane comparison is written so that no index supports it.
	// Otherwise, the planner would search for the row by its lane.
	stillClaimable = `
			select ` + claimColumns + ` from trapeze.live k where k.id = l.id and k.state = 'pending' and (k.lane = w.lane) is true
				and (not k.isolated or @isolated::boolean)
			for update skip locked`
	// subjectRests is the condition that no job with the row's subject is running.
	subjectRests = `(l.subject = '' or not exists (select from trapeze.current_runs r
				where r.kind = l.kind and r.subject = l.subject and r.state = 'running' offset 0))`
	// freshSince is a lower bound for the ready times of jobs whose submissions have not been committed yet. It holds unless a submitting
	// transaction stays open for more than 200 ms.
	freshSince = `now() - interval '200 milliseconds'`
	// AllRanks lists all ranks, the most urgent first. A rank is a negated job priority. The planner assumes that the array has ten
	// elements, and so chooses plans that suit the few jobs that a claim reads.
	AllRanks = `unnest(array(select generate_series(-100, 100))) as rank`
	// tookMicros is the time since the statement reached the server, in microseconds. It is evaluated once per statement.
	tookMicros = `(select (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint)`
)

var (
	// claimKeyed locks the unique keys of the jobs in the picked CTE that hold a key only while they are pending. Plan: unique_keys_of_job.
	claimKeyed = `keyed as materialized (
	select k.job_id from trapeze.unique_keys k join picked p on k.job_id = p.id
	where p.unique_while = 'pending' for update of k skip locked
)`

	// claimTaken reserves the subjects of the rows in the open CTE, in key order. Plan: one insert per subject.
	claimTaken = `taken as (
	insert into trapeze.current_runs (kind, subject, job_id, fence, state)
	select kind, subject, id, ` + nextFence("fence") + `, 'running' from open where subject <> ''
	order by kind, subject, priority desc, ready_at, id
	on conflict (kind, subject) where state = 'running' do nothing
	returning kind, subject, job_id
)`

	// claimSuperseded deletes the ended runs of the subjects in the taken CTE. Plan: current_runs_of_subject.
	claimSuperseded = `superseded as (
	delete from trapeze.current_runs c using taken t
	where c.kind = t.kind and c.subject = t.subject and c.state = 'ended'
)`

	// claimFreed frees the keys of claimed jobs that were unique only while pending. The keyed CTE has locked those keys. Without "is
	// true", the planner would compare every key with every job. Plan: a hashed SubPlan; unique_keys_of_job.
	claimFreed = `freed as (
	delete from trapeze.unique_keys where job_id = any(array(select job_id from keyed where (job_id in (select id from claimed)) is true))
)`

	// claimEvents writes a single row with all claimed jobs' events.
	claimEvents = `events as (
	insert into trapeze.job_events (jobs, event_nos, fences, pod, from_state, to_state, event)
	select array_agg(id), array_agg(event_no), array_agg(fence), @pod, 'pending', 'running', 'job.claimed' from claimed
	having count(*) > 0
)`

	// claimRows returns one row per claimed job, or a single row without a job if none was claimed. Each row repeats the number of locked
	// rows and the contents of the reached CTE. Plan: jobs_pkey.
	claimRows = tookMicros + ` as took, (select json_agg(r) from reached r) as reached, coalesce(c.id, 0), coalesce(c.kind, ''), coalesce(c.lane, ''),
	coalesce(c.subject, ''), j.args, coalesce(j.pipeline_id, 0), j.parent_id, coalesce(j.step, 0), j.planned, j.max_attempts,
	j.max_crashes, coalesce(j.submitter, ''), coalesce(c.priority, 0), coalesce(c.fence, 0), coalesce(c.epoch, 0),
	coalesce(c.attempt, 0), coalesce(c.crashes, 0), coalesce(c.isolated, false), coalesce(c.claimed_at, now()),
	coalesce(c.ready_at, now()),
	case when c.fence % 10000000000 > 1 then (select g.checkpoint from trapeze.job_progress g where g.id = c.id) end as checkpoint,
	j.group_id, j.child_no, coalesce(j.impaired, false),
	coalesce(case when c.fence % 10000000000 > 1 then (select g.snoozes from trapeze.job_progress g where g.id = c.id) end, 0),
	j.traceparent, coalesce(j.created_at, now()), coalesce(c.ahead, false)
from (values (1)) one(row) left join (claimed c join trapeze.jobs j on j.id = c.id) on true`
)

// claimOpen selects the locked rows that this pod may claim, before their subjects are checked. It reads the keyed CTE. It is evaluated
// twice, because materializing it would cost more.
func claimOpen(locked string) string {
	return `open as not materialized (
	select p.* from ` + locked + ` p
	where (p.unique_while is distinct from 'pending' or p.id in (select job_id from keyed))
		and (not p.isolated or p.id = (select min(i.id) from picked i where i.isolated))
)`
}

// startsNow and startsLater are the start times of claimed jobs. Jobs in the spare CTE wait for a slot and have no start time yet. A new
// start time is never earlier than ready_at, which can be later than now() because now() is fixed before the statement is planned.
const (
	startsNow   = `coalesce(l.started_at, greatest(now(), l.ready_at))`
	startsLater = `case when l.id not in (select id from spare) then ` + startsNow + ` end`
)

// claimUpdate claims the rows of the open CTE that have no subject or whose subject is in the taken CTE. Joining only their ids avoids
// copying each row. If all ids were in one array, PostgreSQL 17 would read all of live_for_claim while most of its rows are dead. Plan:
// live_pkey; a HOT update.
func claimUpdate(started string) string {
	return `claimed as (
	update trapeze.live l set state = 'running', fence = ` + nextFence("l.fence") + `, attempt = l.attempt + 1, pod = @pod,
		event_no = l.event_no + 1, claim_xid = pg_current_xact_id(), claimed_at = now(), started_at = ` + started + `,
		unique_while = case when l.unique_while = 'active' then 'active' end
	from (select o.id from open o where o.subject = '' or o.id in (select job_id from taken) offset 0) o
	where l.id = any(array[o.id])
	returning l.id, l.kind, l.lane, l.subject, l.priority, l.fence, l.epoch, l.attempt, l.crashes, l.isolated, l.claimed_at,
		l.ready_at, l.event_no, l.started_at is null as ahead
)`
}

// Claim claims due jobs for a pod. If isolated is true, one of them may be an isolated job. After an error for which [Unknown] is true, the
// claim may have been committed; see [Store.Held].
func (s *Store) Claim(ctx context.Context, podID string, wants []Want, kinds []string, isolated bool) (Claims, error) {
	return s.ClaimAhead(ctx, podID, wants, kinds, nil, isolated)
}

// ClaimAhead is like [Store.Claim] but also claims jobs ahead of time if their kinds are in short.
func (s *Store) ClaimAhead(ctx context.Context, podID string, wants []Want, kinds, short []string, isolated bool) (Claims, error) {
	sql, by := claimOf(s, podID, wants, kinds, short, isolated)
	return claim(ctx, s, sql, by)
}

// claimOf returns a claim statement and its arguments.
func claimOf(s *Store, podID string, wants []Want, kinds, short []string, isolated bool) (*statement, args) {
	lanes, numbers, aheads := make([]string, len(wants)), make([]int32, len(wants)), make([]int32, len(wants))
	marked, ahead := false, false
	for i, w := range wants {
		lanes[i], numbers[i], aheads[i] = w.Lane, int4(w.N), int4(w.Ahead)
		marked = marked || !w.Since.IsZero() || w.After != nil || w.Above != nil
		ahead = ahead || w.Ahead > 0
	}
	by := args{{"pod", podID}, {"lanes", lanes}, {"wants", numbers}, {"aheads", aheads}, {"kinds", kinds}, {"isolated", isolated}}
	if marked {
		by = append(by, claimStarts(wants)...)
	}
	switch {
	case s.stream > 0:
		by = append(by, args{{"stream", s.stream}}...)
		if marked {
			return workerSinceSQL, by
		}
		return workerClaimSQL, by
	case ahead:
		by = append(by, args{{"short", short}}...)
		if marked {
			return claimSinceAheadSQL, by
		}
		return claimAheadSQL, by
	case marked:
		return claimSinceSQL, by
	}
	return claimSQL, by
}

// claimStarts returns the arguments that determine where a claim begins in each lane and how far it reads.
func claimStarts(wants []Want) args {
	continued := 0
	for _, w := range wants {
		if w.After != nil {
			continued++
		}
	}
	since, ready := make([]time.Time, len(wants)), make([]time.Time, len(wants))
	ranks, ids, reach := make([]int32, len(wants)), make([]int64, len(wants)), make([]int32, len(wants))
	above := make([]int32, len(wants))
	for i, w := range wants {
		since[i], ranks[i], reach[i], above[i] = w.Since, -job.MaxPriority-1, int4(ClaimReach/len(wants)), job.MaxPriority+1
		if w.Above != nil {
			above[i] = int4(*w.Above)
		}
		if w.After != nil {
			ranks[i], ready[i], ids[i], reach[i] = int4(w.After.Rank), w.After.ReadyAt, w.After.ID, int4(ClaimReach/continued)
		}
	}
	return args{{"since", since}, {"after_ranks", ranks}, {"after_ready", ready}, {"after_ids", ids}, {"reach", reach}, {"above", above}}
}

// Key is the kind and subject of a job.
type Key struct{ Kind, Subject string }

// ClaimSubjects claims the next due job of each subject whose run has just ended, in lanes that have a free slot.
func (s *Store) ClaimSubjects(ctx context.Context, podID string, keys []Key, lanes []string) (Claims, error) {
	kinds, subjects := make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		kinds[i], subjects[i] = k.Kind, k.Subject
	}
	by := args{{"pod", podID}, {"kinds", kinds}, {"subjects", subjects}, {"lanes", lanes}}
	if s.stream > 0 {
		return claim(ctx, s, workerSubjectsSQL, append(by, args{{"stream", s.stream}}...))
	}
	return claim(ctx, s, claimSubjectsSQL, by)
}

// OfStream returns a copy of s for the pod that serves the given stream of a remote worker. The copy's claims find nothing once a newer
// stream exists, and its slot requests count as later than all requests of earlier streams.
func (s *Store) OfStream(stream int64) *Store {
	of := *s
	of.stream = stream
	return &of
}

func claim(ctx context.Context, s *Store, sql *statement, by args) (Claims, error) {
	var state claimState
	list, err := run(ctx, s, state.scan, sql, by)
	if err != nil {
		return Claims{}, fmt.Errorf("claim: %w", err)
	}
	return state.claims(list)
}

// claimState holds the values that each row of a claim repeats. Each row overwrites them, so nothing from the first attempt remains if a
// statement is resent after a failed commit.
type claimState struct {
	seen    int
	micros  int64
	reached []byte

	// These are reused for each row, so that a row allocates nothing but its claim.
	args, planned, checkpoint []byte
	trace                     *string
	columns                   []any
}

// claims returns the claims in the rows of a claim statement, the most urgent first. If nothing was claimed, the only row has ID 0.
func (s *claimState) claims(list []*Claimed) (found Claims, err error) {
	found = Claims{Seen: s.seen, Took: time.Duration(s.micros) * time.Microsecond}
	if found.Reached, err = reached(s.reached); err != nil {
		return Claims{}, fmt.Errorf("claim: %w", err)
	}
	if list[0].ID != 0 {
		found.Jobs = list
		slices.SortStableFunc(list, func(a, b *Claimed) int { return a.Position().Compare(b.Position()) })
	}
	return found, nil
}

// reached decodes the entries for the lanes in which a claim found fewer jobs than wanted.
func reached(raw []byte) (map[string]Reached, error) {
	if raw == nil {
		return nil, nil
	}
	var list []struct {
		Lane  string
		Rank  int
		Ready *time.Time `json:"ready_at"`
		ID    int64
		Fresh time.Time
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("decode the positions that a claim reached: %w", err)
	}
	found := make(map[string]Reached, len(list))
	for _, r := range list {
		one := Reached{Fresh: r.Fresh}
		if r.Ready != nil {
			one.Last = &LanePosition{Rank: r.Rank, ReadyAt: *r.Ready, ID: r.ID}
		}
		found[r.Lane] = one
	}
	return found, nil
}

// scan scans a row of a claim statement.
func (s *claimState) scan(row pgx.CollectableRow) (*Claimed, error) {
	c := &Claimed{Path: "poll"}
	s.columns = append(s.columns[:0], &s.seen, &s.micros, &s.reached, &c.ID, &c.Kind, &c.Lane, &c.Subject, &s.args, &c.PipelineID, &c.ParentID,
		&c.Step, &s.planned, &c.MaxAttempts, &c.MaxCrashes, &c.Submitter, &c.Priority, &c.Fence, &c.Epoch, &c.Attempt, &c.Crashes, &c.Isolated,
		&c.ClaimedAt, &c.ReadyAt, &s.checkpoint, &c.Group, &c.No, &c.Impaired, &c.Snoozes, &s.trace, &c.CreatedAt, &c.Ahead)
	err := row.Scan(s.columns...)
	c.Args, c.Planned, c.Checkpoint = s.args, s.planned, s.checkpoint // Scan allocates new values for each row
	if s.trace != nil {
		c.Trace = *s.trace
	}
	return c, err
}
