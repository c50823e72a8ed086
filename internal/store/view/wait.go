package view

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// overSQL tells of many jobs which have ended and which there are not. A job that waits or runs is found at the first probe
// or the second; only for the others the history is asked, which has a table a day. A job that an operator retried is in
// live or parked again, whatever done says of its epochs before.
// Plan: primary-key and done_by_id probes; for an exists in the list of columns PostgreSQL 18 would hash whole tables.
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

// readAtOnce is how many jobs that have ended are read by one statement: each may have a result of a megabyte.
const readAtOnce = 100

// Over reads those of some jobs that have ended, and tells which there are not. One statement asks, however many they are;
// what has ended is read by another for each hundred.
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
