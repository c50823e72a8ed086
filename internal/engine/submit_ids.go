package engine

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// idTries is the maximum number of times that jobs are given new ids because theirs are already in use. Each time, the ids come from a
// different block.
const idTries = 3

// withFreeIDs inserts jobs again with other ids as long as one of their ids is in use. err is the error of the first attempt.
func (sub *submitter) withFreeIDs(ctx context.Context, tx pgx.Tx, jobs []*store.NewJob, err error, insert func() error) error {
	for try := 0; sub.Commands.IDTaken(err) && try < idTries; try++ {
		if err = sub.renumber(ctx, tx, jobs...); err == nil {
			err = insert()
		}
	}
	return err
}

// renumber gives jobs new ids, also those recorded as in flight, after finding that one of their ids is in use. Another pod may have used the
// id if a failover lost commits without PostgreSQL noticing.
func (sub *submitter) renumber(ctx context.Context, tx pgx.Tx, jobs ...*store.NewJob) error {
	sub.Log.WarnContext(ctx, "job ids already in use, using others", telemetry.JobID, jobs[0].ID, telemetry.Jobs, len(jobs))
	sub.Commands.DropIDs()
	sub.Store.DropIDs()
	ids, err := sub.newIDs(ctx, tx, len(jobs))
	if err != nil {
		return sub.DBError(err)
	}
	for i, n := range jobs {
		if sub.InFlight.Has(n.ID) {
			sub.InFlight.Add(ids[i])
			sub.InFlight.Remove(n.ID)
		}
		n.ID = ids[i]
	}
	return nil
}

func each(list []store.NewJob) []*store.NewJob {
	all := make([]*store.NewJob, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
