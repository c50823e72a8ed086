package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// prunePodsSQL deletes a batch of closed pods' rows. It also deletes, without a limit, claim requests older than ten minutes, and cancel
// requests of that age whose claims are gone. pruneSubmissionsSQL deletes a batch of expired idempotency keys.
const (
	prunePodsSQL = `
with old as (
	delete from trapeze.pods where id in (
		select id from trapeze.pods where closed_at < now() - $1::bigint * interval '1 millisecond' and swept_at is not null
		order by closed_at limit $2)
	returning id
), told as (
	delete from trapeze.cancel_requests c
	where c.created_at < now() - interval '10 minutes' and not exists (select from trapeze.live l where l.id = c.job_id and l.fence = c.fence)
), asked as (
	delete from trapeze.claim_requests where created_at < now() - interval '10 minutes'
)
select count(*) from old`
	pruneSubmissionsSQL = `
with old as (
	delete from trapeze.submissions where key in (
		select key from trapeze.submissions where created_at < now() - $1::bigint * interval '1 millisecond' order by created_at limit $2)
	returning key
)
select count(*) from old`
)

// prunePipelinesSQL deletes the old pipelines on one page that have no jobs left. Plan: pipelines_pkey, keyset; jobs_pkey and
// jobs_of_pipeline for each.
const prunePipelinesSQL = `
with page as materialized (
	select p.id, p.created_at from trapeze.pipelines p where p.id > $2 order by p.id limit $3
), old as (
	delete from trapeze.pipelines p using page g
	where p.id = g.id and g.created_at < now() - $1::bigint * interval '1 millisecond'
		and not exists (select from trapeze.jobs j where j.id = p.id)
		and not exists (select from trapeze.jobs j where j.pipeline_id = p.id and j.step > 0)
	returning p.id
)
select coalesce((select max(id) from page), 0), (select count(*) from page), (select count(*) from old)`

// PrunePipelines deletes pipelines that have no jobs and are older than keep, page by page, and returns how many it deleted.
func PrunePipelines(ctx context.Context, s *store.Store, keep time.Duration, pace Pace) (total int, err error) {
	const limit = 5000
	type page struct{ Last, Seen, Gone int64 }
	for after := int64(0); ; {
		if err := pace(ctx); err != nil {
			return total, err
		}
		found, err := store.Rows(ctx, s, pgx.RowToStructByPos[page], prunePipelinesSQL, keep.Milliseconds(), after, limit)
		if err != nil {
			return total, fmt.Errorf("prune pipelines: %w", err)
		}
		total += int(found[0].Gone)
		if after = found[0].Last; found[0].Seen < limit {
			return total, nil
		}
	}
}

// PrunePods deletes at most limit rows of pods whose jobs have been recovered. The pods must have been closed for longer than keep. It also
// deletes old requests that are no longer needed. It returns the number of deleted pod rows.
func PrunePods(ctx context.Context, s *store.Store, keep time.Duration, limit int) (int, error) {
	return prune(ctx, s, prunePodsSQL, keep, limit)
}

// PruneSubmissions deletes at most limit idempotency keys older than keep, and returns how many it deleted.
func PruneSubmissions(ctx context.Context, s *store.Store, keep time.Duration, limit int) (int, error) {
	return prune(ctx, s, pruneSubmissionsSQL, keep, limit)
}

func prune(ctx context.Context, s *store.Store, sql string, keep time.Duration, limit int) (int, error) {
	n, err := store.Rows(ctx, s, pgx.RowTo[int], sql, keep.Milliseconds(), limit)
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	return n[0], nil
}
