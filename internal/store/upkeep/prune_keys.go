package upkeep

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// looseKeysSQL locks the unique keys on one page whose jobs have ended or no longer exist. Such a key remains, for example, if an open
	// transaction held its lock when the job ended. freeLooseSQL, which sees everything committed before the locks were taken, frees the
	// keys. A key that a submission is taking over is locked and therefore skipped. Plan: unique_keys_of_job, keyset; primary keys.
	looseKeysSQL = `
with page as materialized (
	select k.kind, k.key, k.job_id from trapeze.unique_keys k where k.job_id > $1 order by k.job_id limit $2
), loose as materialized (
	select k.job_id from page g join trapeze.unique_keys k on k.kind = g.kind and k.key = g.key
	where (select true from trapeze.live l where l.id = g.job_id limit 1) is null
		and (select true from trapeze.parked p where p.id = g.job_id limit 1) is null
	for update of k skip locked
)
select coalesce((select max(job_id) from page), 0), (select count(*) from page), coalesce((select array_agg(job_id) from loose), '{}')`
	freeLooseSQL = `
delete from trapeze.unique_keys k where k.job_id = any($1::bigint[])
	and (select true from trapeze.live l where l.id = k.job_id limit 1) is null
	and (select true from trapeze.parked p where p.id = k.job_id limit 1) is null`
)

// PruneKeys frees the unique keys of jobs that have ended or no longer exist, page by page, and returns how many it freed.
func PruneKeys(ctx context.Context, s *store.Store, pace Pace) (total int, err error) {
	const limit = 5000
	type page struct {
		Last, Seen int64
		Loose      []int64
	}
	for after := int64(0); ; {
		if err := pace(ctx); err != nil {
			return total, err
		}
		seen, freed := int64(0), 0
		err := s.Tx(ctx, func(tx pgx.Tx) error {
			found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[page], s.In(looseKeysSQL), []any{after, limit})
			if err != nil {
				return err
			}
			after, seen, freed = found[0].Last, found[0].Seen, 0
			if len(found[0].Loose) == 0 {
				return nil
			}
			tag, err := tx.Exec(ctx, s.In(freeLooseSQL), found[0].Loose)
			freed = int(tag.RowsAffected())
			return err
		})
		if total += freed; err != nil {
			return total, fmt.Errorf("free unique keys: %w", err)
		}
		if seen < limit {
			return total, nil
		}
	}
}
