package view

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
)

// pipelineNewsSQL reads the unseen events of one pipeline, like newsSQL, but finds them through the pipeline's jobs. It reads no events of
// other pipelines, however old the reader's position is. Within the transactions bounded by $4 and $5, it starts after event $7 of job $6.
// Plan: as for jobEventsSQL, for each job of the pipeline.
const pipelineNewsSQL = `
with of as materialized (
	select id from trapeze.jobs where id = $1 union all select id from trapeze.jobs where pipeline_id = $1 and step > 0
), ` + historySQL + `, told as (
	select e.job as told_job, e.event_no as told_no, ` + newsColumns + `, ` + newsStatus + `
	from e join trapeze.jobs j on j.id = e.job
	where (e.xid > $2::text::xid8 or e.xid = any($3::text[]::xid8[]))
		and ($4::text is null or e.xid <= $4::text::xid8 and e.xid <> all ($5::text[]::xid8[]) and (e.job, e.event_no) > ($6::bigint, $7::int))
	order by e.job, e.event_no limit $8
)
select pg_current_snapshot()::text, coalesce((select e.xid from e order by e.xid desc limit 1), '0'::xid8), t.*
from (values (1)) as one(row) left join told t on true
order by t.told_job, t.told_no`

// PipelineNews returns up to limit new events of one pipeline, for a reader that has already seen the transactions in seen. The events are
// ordered by job and event number. If there are no more events, PipelineNews also returns the set of transactions that the reader has seen
// after this call. If within is not nil, it reads only that set of transactions and starts after the given event.
func PipelineNews(ctx context.Context, s *store.Store, id int64, seen Seen, within *Seen, after Position, limit int) ([]News, Seen, error) {
	upto, open := seen.args()
	var bound *string
	except := []string{}
	if within != nil {
		bound = new(string)
		*bound, except = within.args()
	}
	found, err := store.Rows(ctx, s, scanTold, pipelineNewsSQL, id, upto, open, bound, except, after.Job, after.EventNo, limit)
	if err != nil {
		return nil, seen, fmt.Errorf("read feed events of pipeline %d: %w", id, err)
	}
	list, now, err := gather(seen, found)
	if within != nil {
		now = *within
	}
	return list, now, err
}
