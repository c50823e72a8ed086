package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// Moving describes a move of due and parked jobs to another lane.
type Moving struct {
	From  string
	Kinds []string // nil means all kinds
	To    string   // if empty, each job moves to the lane of its kind
}

// moveLiveSQL moves the due jobs in one page of live to another lane. Jobs keep their priority and position. It skips locked rows, because
// a concurrent claim may be starting those jobs in the old lane. Running jobs keep their slots. A job with a key is parked until it gets a place in the
// new lane. Plan: Index Scan on live_pkey over the
// page, in id order as in a recovery; lane_kinds_pkey.
//
// The page includes the columns that the conditions need. If the conditions rejoined live, each row on the page would be compared with all
// of the lane's rows. For the same reason, the condition that a row is still in its lane is written so that no index can serve it.
var moveLiveSQL = `
with page as materialized (
	select l.id, l.lane, l.kind, l.state from trapeze.live l where l.id > $2 order by l.id limit $3
), found as materialized (
	select p.id, p.lane as was, coalesce($5, (select k.lane from trapeze.lane_kinds k where k.kind = p.kind), 'default') as lane
	from page p where p.lane = $1 and p.state = 'pending' and ($4::text[] is null or p.kind = any($4::text[]))
), hit as materialized (
	select l.id, w.lane from found w join trapeze.live l on l.id = w.id
	where w.lane <> $1 and l.lane is not distinct from w.was and l.state = 'pending' and exists (select from trapeze.lanes n where n.name = w.lane)
	order by l.id for update of l skip locked
), shifted as (
	update trapeze.live l set lane = h.lane, event_no = l.event_no + 1 from hit h where l.id = h.id and l.key is null
	returning l.id, l.event_no, l.fence, l.lane, l.kind, l.subject, l.key
), unplaced as (
	delete from trapeze.live l using hit h where l.id = h.id and l.key is not null returning l.*, h.lane as new_lane
), keyed as (
	insert into trapeze.parked (why, run_after, id, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated, unique_while, lane, kind, subject, key, start_by)
	select 'key', coalesce(due_at, ready_at), id, started_at, fence, event_no + 1, epoch, attempt, crashes, priority, isolated, unique_while, new_lane, kind, subject, key, start_by
	from unplaced returning id, event_no, fence, lane, kind, subject, key
), gone as (
	select * from unplaced u where not ` + store.KeepsSubject("u") + `
), ` + store.ReleaseGuards + `, moved as (
	select * from shifted union all select * from keyed
), events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select id, event_no, fence, 'pending', 'pending', 'job.moved', $6, json_build_object('from', $1::text, 'to', lane) from moved
)
select (select count(*) from page)::int, coalesce((select max(id) from page), 0), (select count(*) from moved)::int,
	((select count(*) from found) - (select count(*) from moved))::int, ` + store.LinesOf("moved")

// moveParkedSQL is like moveLiveSQL, but for jobs that are waiting for a time, for approval or for other jobs. Plan: Index Scan on
// parked_pkey.
var moveParkedSQL = `
with page as materialized (
	select p.id, p.lane, p.kind from trapeze.parked p where p.id > $2 order by p.id limit $3
), found as materialized (
	select p.id, p.lane as was, coalesce($5, (select k.lane from trapeze.lane_kinds k where k.kind = p.kind), 'default') as lane
	from page p where p.lane = $1 and ($4::text[] is null or p.kind = any($4::text[]))
), hit as materialized (
	select l.id, w.lane from found w join trapeze.parked l on l.id = w.id
	where w.lane <> $1 and l.lane is not distinct from w.was and exists (select from trapeze.lanes n where n.name = w.lane)
	order by l.id for update of l skip locked
), moved as (
	update trapeze.parked l set lane = h.lane, event_no = l.event_no + 1 from hit h where l.id = h.id
	returning l.id, l.event_no, l.fence, l.lane, l.kind, case l.why when 'subject' then l.subject else '' end as subject, case l.why when 'key' then l.key end as key,
		case l.why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end as state
), events as (
	insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
	select id, event_no, fence, state, state, 'job.moved', $6, json_build_object('from', $1::text, 'to', lane) from moved
)
select (select count(*) from page)::int, coalesce((select max(id) from page), 0), (select count(*) from moved)::int,
	((select count(*) from found) - (select count(*) from moved))::int, ` + store.LinesOf("moved")

// countMovesSQL counts the jobs that a move would affect. Plan: live_for_claim, the lane's rows; one pass over parked.
const countMovesSQL = `
select (select count(*) from trapeze.live l where l.lane = $1 and l.state = 'pending' and ($2::text[] is null or l.kind = any($2::text[])))
	+ (select count(*) from trapeze.parked p where p.lane = $1 and ($2::text[] is null or p.kind = any($2::text[])))`

// movePage is the number of rows that one move statement reads.
const movePage = 5000

// Move moves due and parked jobs to another lane, with one transaction per page. It returns the number of moved jobs and the number of
// skipped ones. A job is skipped if its row is locked or has changed, or if the target lane is the current lane or does not exist. After an
// error, the pages already moved stay moved, and the call can be repeated.
func Move(ctx context.Context, s *store.Store, m Moving, actor string) (moved, skipped int, err error) {
	for _, sql := range []string{moveLiveSQL, moveParkedSQL} {
		for after := int64(0); ; {
			p, err := moveNextPage(ctx, s, s.Pool(), sql, m, after, actor)
			moved, skipped = moved+p.Moved, skipped+p.Skipped
			if err == nil {
				err = admitMoved(ctx, s, p.Lines)
			}
			if err != nil {
				return moved, skipped, fmt.Errorf("move jobs of lane %q: %w", m.From, err)
			}
			if after = p.Last; p.Seen < movePage {
				break
			}
		}
	}
	return moved, skipped, nil
}

// admitMoved admits the next jobs of lines of which jobs have moved: while their rows were locked, admissions skipped them, and their new
// lane may be open or closed.
func admitMoved(ctx context.Context, s *store.Store, lines []store.Line) error {
	for page := range slices.Chunk(lines, 1000) {
		if _, err := s.AdmitNext(ctx, page...); err != nil {
			return err
		}
	}
	return nil
}

// movedPage is the result of moving one page.
type movedPage struct {
	Seen    int
	Last    int64
	Moved   int
	Skipped int
	Lines   []store.Line // the lines of the moved jobs that are pending or wait in a line
}

func moveNextPage(ctx context.Context, s *store.Store, db store.DB, sql string, m Moving, after int64, actor string) (p movedPage, err error) {
	args := []any{m.From, after, movePage, m.Kinds, store.Some(m.To), actor}
	if db == store.DB(s.Pool()) {
		return view.One(store.Rows(ctx, s, pgx.RowToStructByPos[movedPage], sql, args...))
	}
	return store.QueryOne[movedPage](ctx, s, db, nil, sql, args...)
}

func countMoves(ctx context.Context, s *store.Store, db store.DB, m Moving) (n int, err error) {
	return view.One(store.Query(ctx, s, db, pgx.RowTo[int], countMovesSQL, m.From, m.Kinds))
}
