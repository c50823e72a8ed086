package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// marksSQL computes the low-water mark of each lane, the time before which no job that this pod can claim became ready. The mark is the
// earliest ready time of such a job in any rank, but never later than the current time minus 200 ms, which allows for submissions in
// flight. If none of the first two hundred rows of a rank can be claimed, the last of them counts instead. Plan: per lane and rank, an
// Index Scan on live_for_claim from (lane, rank, time) that stops at two hundred rows. It reads these rows, and the dead and running ones
// since the given time, which claims that start at the mark then skip.
var marksSQL = newStatement(`
select w.lane, least(min(r.moment), ` + freshSince + `, now() - @margin::bigint * interval '1 microsecond'), ` + tookMicros + `
from unnest(@lanes::text[], @since::timestamptz[]) as w(lane, since)
cross join ` + AllRanks + `
left join lateral (
	select coalesce(min(p.ready_at) filter (where p.ok), case when count(*) = 200 then max(p.ready_at) end) as moment
	from (
		select l.ready_at, l.kind = any(@kinds::text[]) and ` + subjectRests + ` as ok from trapeze.live l
		where l.lane = w.lane and (-l.priority) = rank and l.ready_at >= w.since and l.state = 'pending'
		order by l.lane, (-l.priority), l.ready_at, l.id limit 200
	) p
) r on true
group by w.lane`)

// Marks returns the low-water mark of each lane: when Marks read the lane, no job that could be claimed had become ready before that time.
// It also returns how long the statement took on the server. For each lane, it reads only the jobs that became ready since the given time;
// the zero time reads all. A job whose transaction commits later can still have a ready time before the mark. margin is the minimum age of
// a mark.
func (s *Store) Marks(ctx context.Context, since map[string]time.Time, kinds []string, margin time.Duration) (marks map[string]time.Time, took time.Duration, err error) {
	lanes, moments := make([]string, 0, len(since)), make([]time.Time, 0, len(since))
	for lane, moment := range since {
		lanes, moments = append(lanes, lane), append(moments, moment)
	}
	type mark struct {
		Lane   string
		Moment time.Time
		Micros int64
	}
	found, err := run(ctx, s, pgx.RowToStructByPos[mark], marksSQL, args{{"lanes", lanes}, {"since", moments}, {"kinds", kinds}, {"margin", margin.Microseconds()}})
	if err != nil {
		return nil, 0, fmt.Errorf("read the low-water marks: %w", err)
	}
	marks = make(map[string]time.Time, len(found))
	for _, m := range found {
		marks[m.Lane], took = m.Moment, max(took, time.Duration(m.Micros)*time.Microsecond)
	}
	return marks, took, nil
}
