package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// idTries is the number of times that jobs get other ids because theirs are in use. Each time the ids come from a new block.
const idTries = 3

// renumber gives new jobs other ids, after one of theirs was found in use: by a job that another pod submitted under it, as after a failover
// that lost commits and that PostgreSQL does not report.
func (r *Engine) renumber(ctx context.Context, jobs ...*store.NewJob) error {
	r.Log.WarnContext(ctx, "job ids are in use already: others are taken", telemetry.JobID, jobs[0].ID, telemetry.Jobs, len(jobs))
	r.Commands.DropIDs()
	r.Store.DropIDs()
	ids, err := r.Commands.NewIDs(ctx, len(jobs))
	if err != nil {
		return r.DBError(err)
	}
	r.rename(jobs, ids)
	return nil
}

// renumberNext is renumber for the next steps of a claim, as long as the claim is ours.
func (r *Engine) renumberNext(one *Run, jobs ...*store.NewJob) error {
	return r.persist(one, func(ctx context.Context) error { return r.renumber(ctx, jobs...) })
}

func (r *Engine) rename(jobs []*store.NewJob, ids []int64) {
	for i, n := range jobs {
		if r.flights.has(n.ID) {
			r.flights.add(ids[i])
			r.flights.remove(n.ID)
		}
		n.ID = ids[i]
	}
}

// each are pointers to the elements of a list.
func each(list []store.NewJob) []*store.NewJob {
	all := make([]*store.NewJob, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
