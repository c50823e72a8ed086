package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// marksSQL reads lanes rank by rank, from their marks on, and returns a mark for each rank that took long or already has one: the ready time of the
// rank's first job that this pod can claim, but never later than the current time minus 200 ms or the given margin, which allow for submissions in
// flight. What it read before that job are dead rows, running jobs, and jobs of kinds that this pod does not handle. Plan: per lane and
// rank, an Index Scan on live_for_claim that stops at the first job of these kinds.
var marksSQL = newStatement(`
select w.lane, r.rank, least(r.ready_at, now() - interval '200 milliseconds', now() - @margin::bigint * interval '1 microsecond'), `, tookMicros, `
from unnest(@lanes::text[]) as w(lane) left join lateral (
	select rank, b.since, b.began, (
		select l.ready_at from trapeze.live l
		where l.lane = w.lane and (-l.priority) = rank and l.ready_at >= coalesce(b.since, '-infinity') and l.state = 'pending'
			and l.kind = any(@kinds::text[])
		order by l.lane, (-l.priority), l.ready_at, l.id limit 1
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
