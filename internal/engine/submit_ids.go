package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// idTries is the maximum number of times that jobs get new ids because their ids are in use. The new ids come from a different block each
// time.
const idTries = 3

// renumber gives jobs new ids after one of their ids was found to be in use. Another pod may have used the id if a failover lost commits
// and PostgreSQL did not report it.
func (sub *submitter) renumber(ctx context.Context, jobs ...*store.NewJob) error {
	sub.Log.WarnContext(ctx, "job ids already in use, using others", telemetry.JobID, jobs[0].ID, telemetry.Jobs, len(jobs))
	sub.Commands.DropIDs()
	sub.Store.DropIDs()
	ids, err := sub.Commands.NewIDs(ctx, len(jobs))
	if err != nil {
		return sub.DBError(err)
	}
	sub.rename(jobs, ids)
	return nil
}

// rename replaces the ids of jobs, including the ids that are recorded as in flight.
func (sub *submitter) rename(jobs []*store.NewJob, ids []int64) {
	for i, n := range jobs {
		if sub.inFlight.has(n.ID) {
			sub.inFlight.add(ids[i])
			sub.inFlight.remove(n.ID)
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
