package upkeep

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// addStatsSQL adds one pod's rows. A row that already exists was added by an earlier attempt whose reply was lost. Plan: one insert for
	// each row.
	addStatsSQL = `
insert into trapeze.stats (at, lane, kind, state, pod, jobs, wait, run)
select at, lane, kind, state, pod, jobs, wait, run
from json_to_recordset($1::json) as r(at timestamptz, lane text, kind text, state text, pod uuid, jobs bigint, wait integer[], run integer[])
on conflict (at, lane, kind, state, pod) do nothing returning 1`
	// addSumsSQL adds rows that each hold the totals for one hour.
	addSumsSQL = `
insert into trapeze.stats (at, lane, kind, state, jobs, wait, run)
select at, lane, kind, state, jobs, wait, run
from json_to_recordset($1::json) as r(at timestamptz, lane text, kind text, state text, jobs bigint, wait integer[], run integer[])
returning 1`
	// takeOldStatsSQL deletes and returns the oldest per-minute rows whose hour ended at least $1 ms ago. If another pod is deleting some
	// of the same rows, this statement waits and returns only the others. Plan: stats_to_sum, stops at the limit; stats_by_time for each
	// row.
	takeOldStatsSQL = `
with old as materialized (
	select s.at, s.lane, s.kind, s.state, s.pod from trapeze.stats s
	where s.pod is not null and s.at < date_trunc('hour', now() - $1::bigint * interval '1 millisecond', 'UTC') order by s.at limit $2
)
delete from trapeze.stats s using old o
where s.at = o.at and s.lane = o.lane and s.kind = o.kind and s.state = o.state and s.pod = o.pod
returning s.at, s.lane, s.kind, s.state, s.pod::text, s.jobs, s.wait, s.run`
	// pruneStatsSQL deletes one small batch of the oldest rows. Plan: stats_by_time, stops at the limit.
	pruneStatsSQL = `
with old as materialized (
	select s.ctid as row from trapeze.stats s where s.at < now() - $1::bigint * interval '1 millisecond' order by s.at limit $2
), gone as (
	delete from trapeze.stats s where s.ctid = any (array(select row from old)) and s.at < now() - $1::bigint * interval '1 millisecond' returning 1
)
select count(*) from gone`
)

// AddStats adds a pod's rows. Callers can retry it after an error, because each row is added only once.
func AddStats(ctx context.Context, s *store.Store, rows []telemetry.MinuteRow) error {
	for part := range slices.Chunk(rows, 1000) {
		raw, err := json.Marshal(part)
		if err == nil {
			_, err = store.Rows(ctx, s, pgx.RowTo[int], addStatsSQL, string(raw))
		}
		if err != nil {
			return fmt.Errorf("write the numbers of ended jobs: %w", err)
		}
	}
	return nil
}

// SumStats replaces per-minute rows with hourly rows, for hours that ended at least age ago. It returns the number of replaced rows.
// Several pods can run it concurrently.
func SumStats(ctx context.Context, s *store.Store, age time.Duration, pace Pace) (total int, err error) {
	const limit = 10_000
	for {
		if err := pace(ctx); err != nil {
			return total, err
		}
		var old []telemetry.MinuteRow
		err := s.Tx(ctx, func(tx pgx.Tx) (err error) {
			if old, err = store.Query(ctx, s, tx, pgx.RowToStructByPos[telemetry.MinuteRow], takeOldStatsSQL, age.Milliseconds(), limit); err != nil || len(old) == 0 {
				return err
			}
			raw, err := json.Marshal(hours(old))
			if err == nil {
				_, err = store.Query(ctx, s, tx, pgx.RowTo[int], addSumsSQL, string(raw))
			}
			return err
		})
		if err != nil {
			return total, fmt.Errorf("add up the numbers of ended jobs: %w", err)
		}
		if total += len(old); len(old) < limit {
			return total, nil
		}
	}
}

// hours aggregates rows by hour.
func hours(rows []telemetry.MinuteRow) (list []*telemetry.MinuteRow) {
	type key struct {
		at         time.Time
		lane, kind string
		state      job.State
	}
	for k, sum := range telemetry.SumRows(rows, func(r telemetry.MinuteRow) key { return key{r.At.UTC().Truncate(time.Hour), r.Lane, r.Kind, r.State} }) {
		sum.At = k.at
		list = append(list, sum)
	}
	return list
}

// PruneStats deletes at most limit rows that are older than keep. It returns the number of deleted rows.
func PruneStats(ctx context.Context, s *store.Store, keep time.Duration, limit int) (int, error) {
	return prune(ctx, s, pruneStatsSQL, keep, limit)
}
