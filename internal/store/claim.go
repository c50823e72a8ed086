package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Definition is the part of a job that does not change while it runs: the columns of its row in jobs, apart from the id.
type Definition struct {
	Kind       string
	Subject    string
	Key        string // empty if there is none
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
	Ordered     bool      // the job keeps its subject while it waits for a retry
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
	ReadyAt    time.Time       // the job's position in its lane
	DueAt      time.Time       // the time at which it became due, which is earlier if it has waited for a place
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
	N     int    // number of jobs for free slots
	Ahead int    // number of jobs to claim ahead of time, in addition to N; only of the kinds listed as short
	Marks []Mark // in the order of their ranks
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

// Position returns the job's position in its lane.
func (c *Claimed) Position() LanePosition {
	return LanePosition{Rank: -c.Priority, ReadyAt: c.ReadyAt, ID: c.ID}
}

// Claims is the result of one claim statement.
type Claims struct {
	Jobs []*Claimed
	Took time.Duration // execution time on the server
}

// In returns the number of jobs that were claimed in a lane.
func (c Claims) In(lane string) (n int) {
	for _, claimed := range c.Jobs {
		if claimed.Lane == lane {
			n++
		}
	}
	return n
}

// A claim locks the first pending rows of each lane, skips rows that are locked, and makes the others running. Every pending row may run, because a
// job that must wait for something is in parked. A claim checks only what its pod decides: whether the pod's row is open, and which kinds
// the pod handles. Two rules concern the job:
//   - A pod runs at most one isolated job. Such a job has crashed pods, and must not raise the crash counts of others.
//   - A job that holds its unique key only while it is pending is not claimed while the key is locked. A submission that has found the key
//     taken locks it until its commit, so that the job sees the data of that transaction. The claim frees the key.

// claimSQL claims up to the wanted number of jobs in each lane, the most urgent first. It reads each lane in one range, or in several that skip
// what lies before the lane's marks (see [readRanges]). The spare CTE claims jobs ahead of time, without a start: those that follow the picked ones,
// up to the first job that may not be claimed so. It reads them without locks before it locks any, because a concurrent claim would skip a
// locked job and claim the jobs behind it.
//
// Only the claimed CTE updates live, with a HOT update. If all ids were in one array, PostgreSQL 17 would read all of live_for_claim while
// most of its rows are dead. A new start is never earlier than ready_at, which can be later than now() because now() is fixed before
// the statement is planned. A claim that finds nothing returns one row, with the time that it took.
//
// Plan: per range, an Index Scan on live_for_claim with LockRows above it, which stops at the wanted number; per job, one primary key probe
// each in live and jobs. The number of rows that it touches does not grow with the backlog, or with the number of parked jobs.
var claimSQL = newStatement(`
with lanes as materialized (
	select * from unnest(@lanes::text[], @wants::int[], @aheads::int[], @firsts::int[], @lasts::int[]) as w(lane, want, ahead, first, last)
	where exists (select from trapeze.pods p where p.id = @pod and not p.drained and `, stillOpen, `
		and coalesce((select s.stream from trapeze.remote_workers s where s.pod = @pod), 0) = @stream::bigint)
), picked as materialized (
	select c.*, w.lane, count(*) filter (where c.isolated) over (rows unbounded preceding) as isolated_no
	from lanes w cross join lateral (
		select k.* from generate_series(w.first, w.last) as i cross join lateral (
			select k.id, k.isolated, k.unique_while, (-k.priority) as rank, k.ready_at from trapeze.live k
			where `, claimable, ` and ((-k.priority), k.ready_at) >= ((@from_ranks::int[])[i], (@from_times::timestamptz[])[i])
				and (-k.priority) <= (@to_ranks::int[])[i] and `, KeyUnlocked, `
			order by k.lane, (-k.priority), k.ready_at, k.id limit w.want for update skip locked
		) k limit w.want
	) c
), spare as materialized (
	select k.id from lanes w
	left join lateral (select p.rank, p.ready_at, p.id from picked p where p.lane = w.lane order by p.rank desc, p.ready_at desc, p.id desc limit 1) p on true
	cross join lateral (
		select n.id, bool_and(n.short) over (rows unbounded preceding) as may from (
			select k.id, k.fence = 0 and k.subject = '' and k.unique_while is null and k.start_by is null and k.kind = any(@short::text[]) as short from trapeze.live k
			where `, claimable, ` and ((-k.priority), k.ready_at, k.id) > (coalesce(p.rank, -101), coalesce(p.ready_at, '-infinity'), coalesce(p.id, 0))
			order by k.lane, (-k.priority), k.ready_at, k.id limit w.ahead
		) n
	) n
	cross join lateral (
		select k.id from trapeze.live k where k.id = n.id and k.state = 'pending' and k.fence = 0 and (k.lane = w.lane) is true for update skip locked
	) k
	where w.ahead > 0 and n.may
), taken as (
	select id, unique_while, false as ahead from picked where not isolated or isolated_no = 1
	union all
	select id, null, true from spare
), claimed as (
	update trapeze.live l set state = 'running', fence = `, nextFence("l.fence"), `, attempt = l.attempt + 1, pod = @pod,
		event_no = l.event_no + 1, claim_xid = pg_current_xact_id(), claimed_at = now(),
		started_at = case when not t.ahead then coalesce(l.started_at, greatest(now(), l.ready_at)) end,
		unique_while = case when l.unique_while = 'active' then 'active' end
	from (select id, ahead from taken offset 0) t
	where l.id = any(array[t.id])
	returning l.id, l.kind, l.lane, l.subject, l.priority, l.fence, l.epoch, l.attempt, l.crashes, l.isolated, l.claimed_at, l.ready_at,
		l.event_no, l.due_at, t.ahead
), freed as (
	delete from trapeze.unique_keys where job_id = any(array(select id from taken where unique_while = 'pending'))
), events as (
	insert into trapeze.job_events (jobs, event_nos, fences, pod, from_state, to_state, event)
	select array_agg(id), array_agg(event_no), array_agg(fence), @pod, 'pending', 'running', 'job.claimed' from claimed
	having count(*) > 0
)
select `, tookMicros, `, coalesce(c.id, 0), coalesce(c.kind, ''), coalesce(c.lane, ''),
	coalesce(c.subject, ''), j.key, j.args, coalesce(j.pipeline_id, 0), j.parent_id, coalesce(j.step, 0), j.planned, j.max_attempts,
	j.max_crashes, coalesce(j.submitter, ''), coalesce(c.priority, 0), coalesce(c.fence, 0), coalesce(c.epoch, 0),
	coalesce(c.attempt, 0), coalesce(c.crashes, 0), coalesce(c.isolated, false), coalesce(c.claimed_at, now()),
	coalesce(c.ready_at, now()), c.due_at,
	case when c.fence % 10000000000 > 1 then (select g.checkpoint from trapeze.job_progress g where g.id = c.id) end,
	j.group_id, j.child_no, coalesce(j.impaired, false), j.ordered,
	coalesce(case when c.fence % 10000000000 > 1 then (select g.snoozes from trapeze.job_progress g where g.id = c.id) end, 0),
	j.traceparent, coalesce(j.created_at, now()), coalesce(c.ahead, false)
from (values (1)) one(row) left join (claimed c join trapeze.jobs j on j.id = c.id) on true`)

const (
	// claimable is the condition under which this pod may claim row k of the lane in row w.
	claimable = `k.lane = w.lane and k.state = 'pending' and k.kind = any(@kinds::text[]) and (not k.isolated or @isolated::boolean) and ` + InTime
	// InTime is the condition that row k of live may start: it has started before, or its time limit for that has not passed.
	InTime = `(k.start_by is null or k.start_by >= now() or k.started_at is not null)`
	// KeyUnlocked locks the unique key of row k if it is held only while the job is pending. It is false if the key is locked, or if the job's
	// args have been replaced after this statement's snapshot: the lock reads the newest version of the key, but the statement would read the
	// old args. Plan: unique_keys_of_job; jobs_pkey.
	KeyUnlocked = `(k.unique_while is distinct from 'pending'
				or (select true from trapeze.unique_keys u where u.job_id = k.id
					and (u.replaced is null or u.replaced = (select j.replaced from trapeze.jobs j where j.id = k.id)) for update skip locked))`
	// AllRanks lists all ranks, the most urgent first. A rank is a negated job priority. The planner assumes that the array has ten
	// elements, and so chooses plans that suit the few jobs that a claim reads.
	AllRanks = `unnest(array(select generate_series(-100, 100))) as ranks(rank)`
	// tookMicros is the time since the statement reached the server, in microseconds. It is evaluated once per statement.
	tookMicros = `(select (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint)`
	// stillOpen is the condition that a pod's row is open, for statements that look up the row by its key. It is written so that it does not
	// imply the predicate of the pods_open index. Otherwise, the planner might use that index to read all open pods' rows, including their
	// dead versions.
	stillOpen = `coalesce(closed_at, 'infinity') = 'infinity'`
)

// Mark is a low-water mark: in a rank of a lane, reading starts at the time, because no job that the pod can claim became ready before it.
type Mark struct {
	Rank  int // the negated priority
	Since time.Time
}

// readRanges returns the ranges of lanes that a statement reads, as arrays: range i goes from a rank and time to the end of a rank. The ranges of lane
// n are those from firsts[n] to lasts[n], counted from 1. Without marks, a lane is one range. Each mark begins a range, and ends the one before it
// with the rank before the mark's.
func readRanges(lanes ...[]Mark) (firsts, lasts []int32, by args) {
	var ranks, ends []int32
	var times []time.Time
	for _, marks := range lanes {
		firsts = append(firsts, int4(len(ranks)+1))
		ranks, times = append(ranks, -job.MaxPriority), append(times, time.Time{})
		for _, m := range marks {
			ends, ranks, times = append(ends, int4(m.Rank-1)), append(ranks, int4(m.Rank)), append(times, m.Since)
		}
		ends, lasts = append(ends, job.MaxPriority), append(lasts, int4(len(ranks)))
	}
	return firsts, lasts, args{{"from_ranks", ranks}, {"from_times", times}, {"to_ranks", ends}}
}

// Claim claims due jobs for a pod, and jobs ahead of time if their kinds are in short. If isolated is true, one of them may be an isolated job.
// After an error for which [Unknown] is true, the claim may have been committed; see [Store.Held].
func (s *Store) Claim(ctx context.Context, podID string, wants []Want, kinds, short []string, isolated bool) (Claims, error) {
	lanes, numbers, aheads, marks := make([]string, len(wants)), make([]int32, len(wants)), make([]int32, len(wants)), make([][]Mark, len(wants))
	for i, w := range wants {
		lanes[i], numbers[i], aheads[i], marks[i] = w.Lane, int4(w.N), int4(w.Ahead), w.Marks
	}
	firsts, lasts, ranges := readRanges(marks...)
	by := append(ranges, args{{"pod", podID}, {"stream", s.stream}, {"lanes", lanes}, {"wants", numbers}, {"aheads", aheads}, {"firsts", firsts},
		{"lasts", lasts}, {"kinds", kinds}, {"short", short}, {"isolated", isolated}}...)
	var state claimState
	list, err := run(ctx, s, state.scan, claimSQL, by)
	if err != nil {
		return Claims{}, fmt.Errorf("claim: %w", err)
	}
	return state.claims(list), nil
}

// OfStream returns a copy of s for the pod that serves the given stream of a remote worker. The copy's claims find nothing once a newer
// stream exists, and its slot requests count as later than all requests of earlier streams.
func (s *Store) OfStream(stream int64) *Store {
	of := *s
	of.stream = stream
	return &of
}

// claimState holds the values that each row of a claim repeats, and buffers that are reused for each row, so that a row allocates nothing but its
// claim. Nothing remains of the first attempt if a statement is resent after a failed commit.
type claimState struct {
	micros int64

	args, planned, checkpoint []byte
	trace, key                *string
	due                       *time.Time // nil: the ready time
	ordered                   *bool
	columns                   []any
}

// claims returns the claims in the rows of a claim statement, the most urgent first. If nothing was claimed, the only row has ID 0.
func (s *claimState) claims(list []*Claimed) Claims {
	found := Claims{Took: time.Duration(s.micros) * time.Microsecond}
	if list[0].ID != 0 {
		found.Jobs = list
		slices.SortStableFunc(list, func(a, b *Claimed) int { return a.Position().Compare(b.Position()) })
	}
	return found
}

// scan scans a row of a claim statement.
func (s *claimState) scan(row pgx.CollectableRow) (*Claimed, error) {
	c := &Claimed{Path: "poll"}
	s.columns = append(s.columns[:0], &s.micros, &c.ID, &c.Kind, &c.Lane, &c.Subject, &s.key, &s.args, &c.PipelineID, &c.ParentID,
		&c.Step, &s.planned, &c.MaxAttempts, &c.MaxCrashes, &c.Submitter, &c.Priority, &c.Fence, &c.Epoch, &c.Attempt, &c.Crashes, &c.Isolated,
		&c.ClaimedAt, &c.ReadyAt, &s.due, &s.checkpoint, &c.Group, &c.No, &c.Impaired, &s.ordered, &c.Snoozes, &s.trace, &c.CreatedAt, &c.Ahead)
	err := row.Scan(s.columns...)
	c.Args, c.Planned, c.Checkpoint = s.args, s.planned, s.checkpoint // Scan allocates new values for each row
	if s.trace != nil {
		c.Trace = *s.trace
	}
	if s.key != nil {
		c.Key = *s.key
	}
	if c.DueAt = c.ReadyAt; s.due != nil {
		c.DueAt = *s.due
	}
	c.Ordered = s.ordered != nil && *s.ordered
	return c, err
}

// marksSQL reads lanes rank by rank, from their marks on, and returns a mark for each rank that took long or already has one: the ready time of the
// rank's first job that this pod can claim, but never later than the current time minus 200 ms or the given margin, which allow for submissions in
// flight. The rows that it read before that job are dead rows, running jobs, expired ones, and jobs of kinds that this pod does not handle. Plan: per lane and
// rank, an Index Scan on live_for_claim that stops at the first job of these kinds.
var marksSQL = newStatement(`
select w.lane, r.rank, least(r.ready_at, now() - interval '200 milliseconds', now() - @margin::bigint * interval '1 microsecond'), `, tookMicros, `
from unnest(@lanes::text[]) as w(lane) left join lateral (
	select rank, b.since, b.began, (
		select k.ready_at from trapeze.live k
		where k.lane = w.lane and (-k.priority) = rank and k.ready_at >= coalesce(b.since, '-infinity') and k.state = 'pending'
			and k.kind = any(@kinds::text[]) and `, InTime, `
		order by k.lane, (-k.priority), k.ready_at, k.id limit 1
	) as ready_at, clock_timestamp() as ended
	from `, AllRanks, ` cross join lateral (
		select clock_timestamp() as began, (select m.since from unnest(@mark_lanes::text[], @mark_ranks::int[], @mark_times::timestamptz[]) as m(lane, rank, since)
			where m.lane = w.lane and m.rank = ranks.rank) as since
		offset 0
	) b offset 0
) r on r.since is not null or r.ended - r.began > interval '100 microseconds'
order by w.lane, r.rank`)

// Marks returns the marks of lanes that take long to read; a lane that can be read quickly has none. It reads each lane from the given marks on. A
// job whose transaction commits later can still have a ready time before a mark. margin is the minimum age of a mark. Marks also returns how
// long the statement took on the server.
func (s *Store) Marks(ctx context.Context, from map[string][]Mark, kinds []string, margin time.Duration) (marks map[string][]Mark, took time.Duration, err error) {
	var lanes, markLanes []string
	var ranks []int32
	var times []time.Time
	for lane, marks := range from {
		lanes = append(lanes, lane)
		for _, m := range marks {
			markLanes, ranks, times = append(markLanes, lane), append(ranks, int4(m.Rank)), append(times, m.Since)
		}
	}
	type mark struct {
		Lane   string
		Rank   *int
		Since  time.Time
		Micros int64
	}
	found, err := run(ctx, s, pgx.RowToStructByPos[mark], marksSQL, args{{"lanes", lanes}, {"kinds", kinds}, {"margin", margin.Microseconds()},
		{"mark_lanes", markLanes}, {"mark_ranks", ranks}, {"mark_times", times}})
	if err != nil {
		return nil, 0, fmt.Errorf("read the low-water marks: %w", err)
	}
	marks = make(map[string][]Mark, len(lanes))
	for _, lane := range lanes {
		marks[lane] = nil
	}
	for _, m := range found {
		took = max(took, time.Duration(m.Micros)*time.Microsecond)
		if m.Rank != nil {
			marks[m.Lane] = append(marks[m.Lane], Mark{*m.Rank, m.Since})
		}
	}
	return marks, took, nil
}
