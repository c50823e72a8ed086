package view

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// overSQL reports which of the given jobs have ended and which do not exist. The lookups in live and parked find the jobs that are waiting
// or running. Only the remaining jobs are searched for in the history, which has one table per day. A job that an operator has retried is
// in live or parked again, even though done contains its earlier epochs. Plan: primary key and the id index of done lookups; with exists in the
// select list, PostgreSQL 18 would hash whole tables.
const overSQL = `
select w.id, (select true from trapeze.done d where d.id = w.id limit 1) is null as gone
from unnest($1::bigint[]) as w(id)
where (select true from trapeze.live l where l.id = w.id limit 1) is null
	and (select true from trapeze.parked p where p.id = w.id limit 1) is null`

// jobsOfSQL reads the given jobs, each in its latest epoch. Plan: as for jobSQL, for each id.
const jobsOfSQL = `
select ` + jobColumns + ` from unnest($1::bigint[]) as w(wanted) cross join lateral (
	select ` + jobColumns + ` from ` + jobOf + ` job where id = w.wanted order by epoch desc limit 1
) j`

// readAtOnce is the maximum number of finished jobs that one statement reads. It is small because each job's result may take up one
// megabyte.
const readAtOnce = 100

// Over returns the jobs with the given ids that have ended, and the ids for which there is no job. One statement checks all ids. The
// finished jobs are then read with one statement per hundred jobs.
func Over(ctx context.Context, s *store.Store, ids []int64) (over []job.Job, gone []int64, err error) {
	type answer struct {
		ID   int64
		Gone bool
	}
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[answer], overSQL, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("read the state of %d jobs: %w", len(ids), err)
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
			if j.State.Terminal() { // the job has not been retried in the meantime
				over = append(over, j)
			}
		}
	}
	return over, gone, nil
}
