package view

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// overSQL reports which of many jobs have ended and which do not exist. A waiting or running job is found at the first or
// second probe. Only for the other jobs the history is searched, which has one table per day. A job that an operator
// retried is in live or parked again, regardless of its earlier epochs in done. Plan: primary-key and done_by_id probes;
// with exists in the select list PostgreSQL 18 would hash whole tables.
const overSQL = `
select w.id, (select true from trapeze.done d where d.id = w.id limit 1) is null as gone
from unnest($1::bigint[]) as w(id)
where (select true from trapeze.live l where l.id = w.id limit 1) is null
	and (select true from trapeze.parked p where p.id = w.id limit 1) is null`

// jobsOfSQL reads jobs through the view, each at its latest epoch. Plan: as jobSQL, for each id.
const jobsOfSQL = `
select ` + jobColumns + ` from unnest($1::bigint[]) as w(wanted) cross join lateral (
	select ` + jobColumns + ` from ` + jobOf + ` job where id = w.wanted order by epoch desc limit 1
) j`

// readAtOnce is the number of ended jobs that one statement reads: each may have a result of a megabyte.
const readAtOnce = 100

// Over returns those of some jobs that have ended, and the ids of those that do not exist. One statement checks all of
// them; another reads each hundred ended jobs.
func Over(ctx context.Context, s *store.Store, ids []int64) (over []job.Job, gone []int64, err error) {
	type answer struct {
		ID   int64
		Gone bool
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[answer], overSQL, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("look at %d jobs: %w", len(ids), err)
	}
	var ended []int64
	for _, a := range found {
		if a.Gone {
			gone = append(gone, a.ID)
		} else {
			ended = append(ended, a.ID)
		}
	}
	for part := range slices.Chunk(ended, readAtOnce) {
		list, err := store.Rows(ctx, s, scanJob, jobsOfSQL, part)
		if err != nil {
			return nil, nil, fmt.Errorf("read %d jobs: %w", len(part), err)
		}
		for _, j := range list {
			if j.State.Terminal() { // not retried meanwhile
				over = append(over, j)
			}
		}
	}
	return over, gone, nil
}
