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

// Claimed is a job that has just become ours, with what its execution needs.
type Claimed struct {
	ID         int64
	Kind       string
	Lane       string
	Subject    string
	Args       json.RawMessage
	PipelineID int64
	ParentID   *int64
	Step       int
	Branch
	Planned     json.RawMessage
	MaxAttempts *int
	MaxCrashes  *int
	Submitter   string
	Priority    int
	Fence       int64
	Epoch       int
	Attempt     int // this try, counted from 1
	Crashes     int
	Isolated    bool
	CreatedAt   time.Time // it was submitted
	ClaimedAt   time.Time
	ReadyAt     time.Time
	Checkpoint  json.RawMessage // nil: none
	Snoozes     int             // how often its handler has put it off
	Trace       string          // its submission's place in a trace, as a traceparent; empty: none
	Path        string          // fast or poll
	Ahead       bool            // claimed ahead: no slot was wanted for it
}

// Late reports whether the job was claimed a minute after its submission, or later.
func (c *Claimed) Late() bool { return c.ClaimedAt.Sub(c.CreatedAt) >= time.Minute }

// Want is how many jobs of a lane are wanted.
type Want struct {
	Lane  string
	N     int           // for slots that are free
	Ahead int           // claimed ahead, behind those: of the kinds that the claim names as short alone
	Since time.Time     // what became ready before it is passed by; zero: nothing is
	After *LanePosition // what stands up to it is passed by, and in the ranks after its own what became ready before Since; nil: nothing is
	Above *int          // only jobs of a lower rank are read, the more urgent ones; nil: all
}

// LanePosition is a place in the order in which the jobs of a lane are claimed.
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

// Position returns the place of the job in its lane.
func (c *Claimed) Position() LanePosition {
	return LanePosition{Rank: -c.Priority, ReadyAt: c.ReadyAt, ID: c.ID}
}

// Reached is how far a claim read in a lane in which it did not find as many jobs as wanted.
type Reached struct {
	Last  *LanePosition // the last row that was read, when others follow; nil: none does
	Fresh time.Time     // what is submitted later than the claim became ready after it
}

// Claims is what one claim statement found.
type Claims struct {
	Jobs []Claimed
	// Seen counts the jobs that were locked: when it exceeds len(Jobs), some lost the race for their subject or key, and
	// another look may find others behind them.
	Seen int
	Took time.Duration // in the server
	// Reached has the lanes that were not filled.
	Reached map[string]Reached
}

// Some reports whether a job of the lane was claimed.
func (c Claims) Some(lane string) bool {
	return slices.ContainsFunc(c.Jobs, func(one Claimed) bool { return one.Lane == lane })
}

// A claim is a list of parts. picked locks pending rows for free slots, spare others that are claimed ahead, and reached says how far picked
// read; they are the claim's own. The parts of [claimTail], the same for all, make what was picked ours: keyed → open → taken → claimed, the one HOT update, and from
// these what is freed, superseded and told.

// claimStatement is the claim with a picked, a spare and a reached of its own; more has further conditions for picked as a whole.
func claimStatement(picked, spare, reached string, more ...string) *statement {
	return newStatement(with("picked as materialized ("+picked+strings.Join(more, "")+"\n)", "spare as materialized ("+spare+"\n)", reached, claimTail), claimRows)
}

// claimSQL claims the most urgent due jobs of each lane, up to as many as are wanted, of the kinds this pod knows. A
// subject that runs in the snapshot is passed by, so that it neither blocks nor hides what is behind. A pod whose row is
// closed claims nothing. The offset 0 keeps the planner from reading all running subjects into a hash table: each row is a
// probe of current_runs_one_running.
//
// A claim reads at most [ClaimReach] pending rows more than it wants, shared among its lanes. It reads them without locks, and
// no further than it needs; each that it may take is locked by its primary key, and its latest version is checked again. The
// CTE reached lists the lanes that were not filled, each with the last row of its share, or with nulls when the lane has
// fewer rows: [claimSinceSQL] continues behind that row.
// Plan: per lane an Index Scan on live_for_claim that stops at the wanted number or at the share, and a probe of live_pkey,
// with LockRows above it, for each row that may be taken; for a lane that was not filled one more Index Scan up to the share;
// then one primary-key probe a job in live and jobs. Rows touched grow with the wanted number and with the lane's running
// jobs, not with the backlog.
//
// claimSinceSQL is claimSQL without what became ready before a moment: it looks at each rank from there on, for the dead
// rows of what has ended may stand before it, and as long as a transaction holds an old snapshot they are walked over again and
// again. In a lane with a position it continues behind that, and reads the less urgent ranks from the moment on. The nested
// loops take the ranks in their order and stop with the limit.
// Plan: per lane and rank an Index Scan on live_for_claim from (lane, rank, moment, id); else as claimSQL.
//
// claimSubjectsSQL claims the most urgent due job of each (kind, subject) whose run has just ended, in the given lanes.
// Plan: Index Scan on live_for_subject per key, in its order, stops at the first pending row.
var (
	claimSQL         = claimStatement(claimPick, claimSpare, claimReached)
	claimSinceSQL    = claimStatement(claimSincePick, claimSinceSpare, claimSinceReached)
	claimSubjectsSQL = claimStatement(claimSubjectsPick, noSpare, claimSubjectsReached)
)

// The claims of a remote worker are those of any pod, by the pod that serves its latest stream alone: one that has not heard yet that the
// worker has gone elsewhere would claim beside the other for the same slots. Plans: as of the claims, and a probe of remote_workers_pkey.
var (
	workerClaimSQL    = claimStatement(claimPick, noSpare, claimReached, latestStream)
	workerSinceSQL    = claimStatement(claimSincePick, noSpare, claimSinceReached, latestStream)
	workerSubjectsSQL = claimStatement(claimSubjectsPick, noSpare, claimSubjectsReached, latestStream)
)

// ClaimReach is how many pending rows beyond the wanted number a claim reads in all lanes together; a claim that continues in
// some lanes reads as many again in these.
const ClaimReach = 1000

const (
	claimPick = `
	select c.* from ` + lanesWanted + `
	cross join lateral (
		select ` + claimColumns + `
		from (select l.id, ` + claimable + ` as ok` + laneRows + ` limit w.want + ` + laneShare + `) l join trapeze.live k on k.id = l.id
		where ` + stillClaimable + `
		limit w.want for update of k skip locked
	) c
	where ` + openPod

	claimReached = `reached as (
	select w.lane, e.rank, e.ready_at, e.id, ` + freshSince + ` as fresh from ` + lanesWanted + `
	left join lateral (
		select (-l.priority) as rank, l.ready_at, l.id` + laneRows + ` offset w.want + ` + laneShare + ` - 1 limit 1
	) e on true
	where ` + notFilled + `
)`

	// claimSpare locks the rows that are claimed ahead, in the order of the lane. It reads 200 rows that it may not take, so that a lane whose
	// first job may not be ahead costs little. Plan: as claimPick; nothing where none are wanted.
	claimSpare = `
	select c.* from ` + lanesWanted + `
	cross join lateral (
		select k.* from (` + untilBlocked + `select l.id, ` + mayWait + ` as ok, ` + claimable + ` as claimable` + laneRows + ` limit w.want + w.ahead + least(200, ` + laneShare + `)` + unpicked + `) l cross join lateral (` + stillMayWait + `) k
		where l.ok
		limit w.ahead
	) c
	where w.ahead > 0 and ` + openPod

	lanesWanted = `unnest(@lanes::text[], @wants::int[], @aheads::int[]) as w(lane, want, ahead)`

	// laneRows is what waits in a lane, the most urgent first.
	laneRows = ` from trapeze.live l where l.lane = w.lane and l.state = 'pending'
			order by l.lane, (-l.priority), l.ready_at, l.id`
	laneShare = `1000 / cardinality(@lanes::text[])`
)

const (
	claimSincePick = `
	select c.* from ` + lanesSince + `
	cross join lateral (
		select ` + claimColumns + `
		from (select r.id, r.ok from ` + AllRanks + ` cross join lateral (select l.id, ` + claimable + ` as ok` + rankRows + `) r
			where rank >= w.after_rank and rank < w.above limit w.want + w.reach) l join trapeze.live k on k.id = l.id
		where ` + stillClaimable + `
		limit w.want for update of k skip locked
	) c
	where ` + openPod

	// claimSinceSpare is claimSpare from the moment on. Plan: as claimSincePick; nothing where none are wanted.
	claimSinceSpare = `
	select c.* from ` + lanesSince + `
	cross join lateral (
		select k.* from (` + untilBlocked + `select r.* from ` + AllRanks + ` cross join lateral (select l.id, ` + mayWait + ` as ok, ` + claimable + ` as claimable` + rankRows + ` + w.ahead) r
			where rank >= w.after_rank and rank < w.above limit w.want + w.ahead + least(200, w.reach)` + unpicked + `) l cross join lateral (` + stillMayWait + `) k
		where l.ok
		limit w.ahead
	) c
	where w.ahead > 0 and ` + openPod

	claimSinceReached = `reached as (
	select w.lane, e.rank, e.ready_at, e.id, ` + freshSince + ` as fresh from ` + lanesSince + `
	left join lateral (
		select rank, r.ready_at, r.id from ` + AllRanks + ` cross join lateral (select l.ready_at, l.id` + rankRows + `) r
		where rank >= w.after_rank and rank < w.above offset w.want + w.reach - 1 limit 1
	) e on true
	where ` + notFilled + `
)`

	lanesSince = `unnest(@lanes::text[], @wants::int[], @aheads::int[], @since::timestamptz[], @after_ranks::int[], @after_ready::timestamptz[], @after_ids::bigint[], @reach::int[],
		@above::int[]) as w(lane, want, ahead, since, after_rank, after_ready, after_id, reach, above)`

	// rankRows is what waits in one rank of a lane, behind the position or from the moment on.
	rankRows = ` from trapeze.live l where l.lane = w.lane and (-l.priority) = rank and l.state = 'pending'
				and (l.ready_at, l.id) > (case when rank = w.after_rank then w.after_ready else w.since end,
					case when rank = w.after_rank then w.after_id else 0 end)
				order by l.lane, (-l.priority), l.ready_at, l.id limit w.want + w.reach`
)

const (
	claimSubjectsPick = `
	select c.* from unnest(@kinds::text[], @subjects::text[]) as w(kind, subject)
	cross join lateral (
		select l.id, l.kind, l.subject, l.fence, l.priority, l.ready_at, l.isolated, l.unique_while, l.lane from trapeze.live l
		where l.kind = w.kind and l.subject = w.subject and l.subject <> '' and l.state = 'pending'
			and l.lane = any(@lanes::text[]) and not l.isolated
		order by (-l.priority), l.ready_at, l.id
		limit 1 for update of l skip locked
	) c
	where ` + openPod + `
		and not exists (select from trapeze.current_runs r
			where r.kind = c.kind and r.subject = c.subject and r.state = 'running' offset 0)`

	// noSpare is the spare of claims that take no job ahead.
	noSpare = `
	select * from picked where false`

	// claimSubjectsReached says nothing: what waits behind a subject is not read.
	claimSubjectsReached = `reached as (
	select null::text as lane, null::int as rank, null::timestamptz as ready_at, null::bigint as id, null::timestamptz as fresh where false
)`
)

const (
	claimColumns = `k.id, k.kind, k.subject, k.fence, k.priority, k.ready_at, k.isolated, k.unique_while, k.lane`
	// mayWait tells which rows may be claimed ahead. Only the first claim of a job may.
	mayWait = `l.fence = 0 and l.subject = '' and l.unique_while is null and l.kind = any(@short::text[])`
	// untilBlocked and unpicked pass over the rows behind the first one that this pod may take, but not ahead: no job overtakes it. The window
	// reads row by row, as far as the claim does.
	untilBlocked = `select id, ok and not bool_or(claimable and not ok) over (rows unbounded preceding) as ok from (`
	unpicked     = `) r where id not in (select id from picked)`
	// stillMayWait locks such a row and checks its latest version. It is a query so that the planner has no choice of what to read first.
	stillMayWait = `
			select ` + claimColumns + ` from trapeze.live k where k.id = l.id and k.state = 'pending' and k.fence = 0 and (k.lane = w.lane) is true
			for update skip locked`
	// openPod is the condition of every claim: the row of the pod is open.
	openPod = `exists (select from trapeze.pods p where p.boot = @boot and p.closed_at is null)`
	// latestStream says that the worker's latest stream is the one that this pod serves.
	latestStream = ` and (select w.stream from trapeze.remote_workers w where w.boot = @boot) = @stream::bigint`
	// notFilled is the condition of a lane of which fewer jobs were picked than wanted.
	notFilled = `(select count(*) from picked p where p.lane = w.lane) < w.want`
	// claimable says whether this pod may take a pending row.
	claimable = `l.kind = any(@kinds::text[]) and (not l.isolated or @isolated::boolean) and ` + subjectRests
	// stillClaimable checks the latest version of a row that could be taken. Its lane is compared in a way that no index serves:
	// the planner would otherwise look for the row in its lane.
	stillClaimable = `l.ok and k.state = 'pending' and (k.lane = w.lane) is true and (not k.isolated or @isolated::boolean)`
	// subjectRests says that no job of a row's subject runs.
	subjectRests = `(l.subject = '' or not exists (select from trapeze.current_runs r
				where r.kind = l.kind and r.subject = l.subject and r.state = 'running' offset 0))`
	// freshSince is a moment after which all becomes ready whose submission has not been committed yet, unless that is open for long.
	freshSince = `now() - interval '200 milliseconds'`
	// AllRanks are all ranks, the most urgent first: the negated priorities of package job. Of an array the planner expects
	// ten elements, and keeps to the plans that are right for the few jobs which come of it.
	AllRanks = `unnest(array(select generate_series(-100, 100))) as rank`
	// tookMicros is for how long the statement has run in the server, in microseconds.
	tookMicros = `(extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint`
)

// claimTail makes the rows of picked ours: state, the next fence, attempt + 1, pod.
//
// Left alone, unspent: a job whose unique key is locked by a submission that has not committed; all but one isolated job;
// a job whose subject another one took first, here in key order, which is why two claims cannot deadlock. At most one
// job a (kind, subject) goes in, the most urgent.
var claimTail = list(claimKeyed, claimOpen, claimTaken, claimSuperseded, claimUpdate, claimFreed, claimEvents)

const (
	// claimKeyed locks the unique keys of the picked rows that have one while they are pending. Plan: unique_keys_of_job.
	claimKeyed = `keyed as materialized (
	select k.job_id from trapeze.unique_keys k join picked p on k.job_id = p.id
	where p.unique_while = 'pending' for update of k skip locked
)`

	// claimOpen is what of picked and spare may become ours, but for its subject, with its next fence. It reads keyed.
	claimOpen = `open as materialized (
	select p.*, ` + nextFence + ` as next_fence from (select *, false as ahead from picked union all select *, true from spare) p
	where (p.unique_while is distinct from 'pending' or p.id in (select job_id from keyed))
		and (not p.isolated or p.id = (select min(i.id) from picked i where i.isolated))
)`

	// claimTaken takes the subjects of open, in the order of their keys. Plan: an insert a subject.
	claimTaken = `taken as (
	insert into trapeze.current_runs (kind, subject, job_id, fence, state)
	select kind, subject, id, next_fence, 'running' from open where subject <> ''
	order by kind, subject, priority desc, ready_at, id
	on conflict (kind, subject) where state = 'running' do nothing
	returning kind, subject, job_id
)`

	// claimSuperseded deletes the ended runs of the subjects of taken. Plan: current_runs_of_subject.
	claimSuperseded = `superseded as (
	delete from trapeze.current_runs c using taken t
	where c.kind = t.kind and c.subject = t.subject and c.state = 'ended'
)`

	// claimUpdate makes the rows of open ours whose subject, if they have one, is in taken. The mark of a claim ahead is that the job has not
	// started. Plan: live_pkey, HOT.
	claimUpdate = `claimed as (
	update trapeze.live l set state = 'running', fence = o.next_fence, attempt = l.attempt + 1, pod = @boot,
		event_no = l.event_no + 1, claim_xid = pg_current_xact_id(), claimed_at = now(), started_at = case when not o.ahead then coalesce(l.started_at, now()) end,
		unique_while = case when l.unique_while = 'active' then 'active' end
	from open o
	where l.id = o.id and (o.subject = '' or o.id in (select job_id from taken))
	returning l.id, l.kind, l.lane, l.subject, l.priority, l.fence, l.epoch, l.attempt, l.crashes, l.isolated, l.claimed_at,
		l.ready_at, l.event_no, o.unique_while as was_unique, o.ahead
)`

	// claimFreed frees the keys of claimed that were unique while pending; keyed has locked them. Plan: unique_keys_of_job.
	claimFreed = `freed as (
	delete from trapeze.unique_keys k using claimed c where c.was_unique = 'pending' and k.job_id = c.id
)`

	// claimEvents writes one row for the events of all of claimed.
	claimEvents = `events as (
	insert into trapeze.job_events (jobs, event_nos, fences, boot, from_state, to_state, event)
	select array_agg(id), array_agg(event_no), array_agg(fence), @boot, 'pending', 'running', 'job.claimed' from claimed
	having count(*) > 0
)`

	// claimRows reads a row a job of claimed, or one without a job: what was picked and reached is in each. Plan: jobs_pkey.
	claimRows = `select (select count(*) from picked) + (select count(*) from spare) as seen, ` + tookMicros + ` as took, (select json_agg(r) from reached r) as reached, coalesce(c.id, 0), coalesce(c.kind, ''), coalesce(c.lane, ''),
	coalesce(c.subject, ''), j.args, coalesce(j.pipeline_id, 0), j.parent_id, coalesce(j.step, 0), j.planned, j.max_attempts,
	j.max_crashes, coalesce(j.submitter, ''), coalesce(c.priority, 0), coalesce(c.fence, 0), coalesce(c.epoch, 0),
	coalesce(c.attempt, 0), coalesce(c.crashes, 0), coalesce(c.isolated, false), coalesce(c.claimed_at, now()),
	coalesce(c.ready_at, now()),
	case when c.fence % 10000000000 > 1 then (select g.checkpoint from trapeze.job_progress g where g.id = c.id) end as checkpoint,
	j.group_id, j.child_no, coalesce(j.impaired, false),
	coalesce(case when c.fence % 10000000000 > 1 then (select g.put_off from trapeze.job_progress g where g.id = c.id) end, 0),
	j.traceparent, coalesce(j.created_at, now()), coalesce(c.ahead, false)
from (values (1)) one(row) left join (claimed c join trapeze.jobs j on j.id = c.id) on true`
)

// Claim makes due jobs ours. isolated says whether an isolated job may be among them. After an error for which [Unknown]
// is true the claim may have been committed: see [Store.Held].
func (s *Store) Claim(ctx context.Context, boot string, wants []Want, kinds []string, isolated bool) (Claims, error) {
	return s.ClaimAhead(ctx, boot, wants, kinds, nil, isolated)
}

// ClaimAhead is [Store.Claim] with claims ahead, of the kinds in short alone.
func (s *Store) ClaimAhead(ctx context.Context, boot string, wants []Want, kinds, short []string, isolated bool) (Claims, error) {
	lanes, numbers, aheads := make([]string, len(wants)), make([]int32, len(wants)), make([]int32, len(wants))
	marked := false
	for i, w := range wants {
		lanes[i], numbers[i], aheads[i] = w.Lane, int4(w.N), int4(w.Ahead)
		marked = marked || !w.Since.IsZero() || w.After != nil || w.Above != nil
	}
	by := args{{"boot", boot}, {"lanes", lanes}, {"wants", numbers}, {"aheads", aheads}, {"kinds", kinds}, {"isolated", isolated}}
	sql, forWorker := claimSQL, workerClaimSQL
	if marked {
		by, sql, forWorker = append(by, claimStarts(wants)...), claimSinceSQL, workerSinceSQL
	}
	if s.stream > 0 {
		return claim(ctx, s, forWorker, append(by, args{{"stream", s.stream}}...))
	}
	return claim(ctx, s, sql, append(by, args{{"short", short}}...))
}

// claimStarts are where claims begin in each lane, and how far they read.
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

// Key names what a job is about.
type Key struct{ Kind, Subject string }

// ClaimSubjects claims the next due job of each subject whose run has just ended, in lanes that have a slot.
func (s *Store) ClaimSubjects(ctx context.Context, boot string, keys []Key, lanes []string) (Claims, error) {
	kinds, subjects := make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		kinds[i], subjects[i] = k.Kind, k.Subject
	}
	by := args{{"boot", boot}, {"kinds", kinds}, {"subjects", subjects}, {"lanes", lanes}}
	if s.stream > 0 {
		return claim(ctx, s, workerSubjectsSQL, append(by, args{{"stream", s.stream}}...))
	}
	return claim(ctx, s, claimSubjectsSQL, by)
}

// OfStream returns the store as the pod uses it that serves a remote worker's stream of a number: its claims find nothing once there is a
// newer one, and its questions for slots come after all those of the streams before it.
func (s *Store) OfStream(stream int64) *Store {
	of := *s
	of.stream = stream
	return &of
}

func claim(ctx context.Context, s *Store, sql *statement, by args) (Claims, error) {
	// The rows of a first try that was not committed are not to be among those of the second: nothing is kept in scan.
	list, err := run(ctx, s, scanClaim, sql, by)
	if err != nil {
		return Claims{}, fmt.Errorf("claim: %w", err)
	}
	found := Claims{Seen: list[0].seen, Took: list[0].took}
	if found.Reached, err = reached(list[0].reached); err != nil {
		return Claims{}, fmt.Errorf("claim: %w", err)
	}
	if list[0].ID != 0 {
		found.Jobs = make([]Claimed, len(list))
		for i := range list {
			found.Jobs[i] = list[i].Claimed
		}
	}
	return found, nil
}

// claimedRow is a row of a claim: one with id 0 when nothing was claimed, so that seen has a row to be in.
type claimedRow struct {
	seen    int
	took    time.Duration
	reached []byte
	Claimed
}

// reached reads what a claim says of the lanes that it did not fill.
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
		return nil, fmt.Errorf("read how far it reached: %w", err)
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

func scanClaim(row pgx.CollectableRow) (c claimedRow, err error) {
	var args, planned, checkpoint []byte
	var micros int64
	var trace *string
	err = row.Scan(&c.seen, &micros, &c.reached, &c.ID, &c.Kind, &c.Lane, &c.Subject, &args, &c.PipelineID, &c.ParentID, &c.Step, &planned,
		&c.MaxAttempts, &c.MaxCrashes, &c.Submitter, &c.Priority, &c.Fence, &c.Epoch, &c.Attempt, &c.Crashes, &c.Isolated,
		&c.ClaimedAt, &c.ReadyAt, &checkpoint, &c.Group, &c.No, &c.Impaired, &c.Snoozes, &trace, &c.CreatedAt, &c.Ahead)
	if trace != nil {
		c.Trace = *trace
	}
	c.took = time.Duration(micros) * time.Microsecond
	c.Args, c.Planned, c.Checkpoint, c.Path = args, planned, checkpoint, "poll"
	return c, err
}
