package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// idTries is the maximum number of times that jobs are given new ids because theirs are already in use. Each time, the ids come from a
// different block.
const idTries = 3

// renumber gives jobs new ids after finding that one of their ids is in use. Another pod may have used the id if a failover lost commits
// without PostgreSQL noticing.
func (sub *submitter) renumber(ctx context.Context, from reads, jobs ...*store.NewJob) error {
	sub.Log.WarnContext(ctx, "job ids already in use, using others", telemetry.JobID, jobs[0].ID, telemetry.Jobs, len(jobs))
	sub.Commands.DropIDs()
	sub.Store.DropIDs()
	ids, err := from.ids(ctx, len(jobs))
	if err != nil {
		return sub.DBError(err)
	}
	sub.rename(jobs, ids)
	return nil
}

// rename replaces jobs' ids, including those recorded as in flight.
func (sub *submitter) rename(jobs []*store.NewJob, ids []int64) {
	for i, n := range jobs {
		if sub.InFlight.Has(n.ID) {
			sub.InFlight.Add(ids[i])
			sub.InFlight.Remove(n.ID)
		}
		n.ID = ids[i]
	}
}

func each(list []store.NewJob) []*store.NewJob {
	all := make([]*store.NewJob, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
