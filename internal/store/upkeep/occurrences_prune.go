package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// keptOccurrences is the number of latest occurrences kept for each schedule, regardless of age. In addition, the same number of the latest
// occurrences with a job is kept.
const keptOccurrences = 20

// pruneOccurrencesSQL deletes old occurrences of all schedules, including deleted ones. It keeps the latest occurrences, and those that the
// schedule has not reached yet. It also keeps the latest occurrences that have a job, because they show whether one of the schedule's jobs
// is active. Plan: one probe of schedule_occurrences_pkey per schedule name; for each schedule, the rows before the oldest one kept, up to the
// limit.
const pruneOccurrencesSQL = `
with recursive names(schedule) as (
	(select f.schedule from trapeze.schedule_occurrences f order by f.schedule, f.fire_at limit 1)
	union all
	select (select f.schedule from trapeze.schedule_occurrences f where f.schedule > n.schedule order by f.schedule, f.fire_at limit 1)
	from names n where n.schedule is not null
), old as (
	select o.schedule, o.fire_at from names n
	cross join lateral (
		select least(
			coalesce((select f.fire_at from trapeze.schedule_occurrences f where f.schedule = n.schedule
				order by f.fire_at desc offset $2 - 1 limit 1), '-infinity'),
			coalesce((select s.next_at from trapeze.schedules s where s.name = n.schedule), 'infinity'),
			now() - $1::bigint * interval '1 millisecond') as before,
			coalesce((select f.fire_at from trapeze.schedule_occurrences f where f.schedule = n.schedule and f.job_id is not null
				order by f.fire_at desc offset $2 - 1 limit 1), '-infinity') as working
	) k
	join trapeze.schedule_occurrences o on o.schedule = n.schedule and o.fire_at < k.before
		and (o.job_id is null or o.fire_at < k.working)
		and o.decided_at < now() - $1::bigint * interval '1 millisecond'
	limit $3
)
delete from trapeze.schedule_occurrences f using old o where f.schedule = o.schedule and f.fire_at = o.fire_at returning 1`

// PruneOccurrences deletes occurrences older than keep, page by page, and returns how many it deleted. It always keeps the latest twenty of each
// schedule. If keep is negative, it deletes nothing. Several pods can run it concurrently.
func PruneOccurrences(ctx context.Context, s *store.Store, keep time.Duration, pace Pace) (total int, err error) {
	const limit = 5000
	for keep >= 0 {
		if err := pace(ctx); err != nil {
			return total, err
		}
		gone, err := store.Rows(ctx, s, pgx.RowTo[int], pruneOccurrencesSQL, keep.Milliseconds(), keptOccurrences, limit)
		total += len(gone)
		if err != nil {
			return total, fmt.Errorf("prune occurrences: %w", err)
		}
		if len(gone) < limit {
			break
		}
	}
	return total, nil
}
