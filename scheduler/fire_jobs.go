package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// withJobs returns the occurrences that are still to submit a job.
func (d *decision) withJobs() (list []*job.Occurrence) {
	for i := range d.occurrences {
		if d.occurrences[i].JobID != nil {
			list = append(list, &d.occurrences[i])
		}
	}
	return list
}

func refuse(f *job.Occurrence, why job.OccurrenceOutcome, message string) {
	f.Outcome, f.JobID, f.Message = why, nil, message
}

// fail marks all occurrences that would submit a job as failed.
func (d *decision) fail(err error) {
	for _, f := range d.withJobs() {
		refuse(f, job.OccurrenceFailed, job.Storable(err.Error(), 500))
	}
}

// submitJobs submits occurrences' jobs in the transaction that processes the occurrences. If the database rejects jobs, their occurrences
// are recorded as failed or, if there are several schedules, the whole transaction fails, and the schedules are then processed one by one.
//
// The jobs need no approval, even if their lane requires it for submissions. Instead, the API requires permission to approve from anyone
// who sets or triggers a schedule for that lane. The program itself and operators with SQL access have this permission implicitly.
//
// Like jobs that the program submits, the jobs have no submitter, so users who see only their own jobs do not see them. Their pipelines are
// named after the schedule.
func (c *Submitter) submitJobs(ctx context.Context, tx pgx.Tx, list []decision, actor string) error {
	work, err := c.prepare(ctx, tx, list)
	if err != nil {
		return err
	}
	if err := c.takeKeys(ctx, tx, list); err != nil {
		return err
	}
	var jobs []store.NewJob
	var submitted []func(error)
	for i := range list {
		occurrences := list[i].withJobs()
		if len(occurrences) == 0 {
			continue
		}
		ids := make([]int64, len(occurrences))
		for k, f := range occurrences {
			ids[k] = *f.JobID
		}
		rows, ended := work[i](ctx, ids)
		for k := range rows {
			rows[k].Actor, rows[k].Approved = actor, true
		}
		jobs, submitted = append(jobs, rows...), append(submitted, ended)
	}
	if len(jobs) == 0 {
		return nil
	}
	err = c.enqueueWithin(ctx, tx, jobs)
	for _, ended := range submitted {
		ended(err)
	}
	if store.Refused(err) && !c.o.Store.IDTaken(err) && len(list) == 1 {
		list[0].fail(err)
		return nil
	}
	if err != nil {
		return err
	}
	for i := range list {
		for _, f := range list[i].withJobs() {
			f.State = job.Pending
		}
	}
	return nil
}

// prepare creates each schedule's jobs. A job that cannot be submitted affects only its own schedule.
func (c *Submitter) prepare(ctx context.Context, tx pgx.Tx, list []decision) ([]NewJobs, error) {
	work := make([]NewJobs, len(list))
	for i := range list {
		d := &list[i]
		if len(d.withJobs()) == 0 {
			continue
		}
		jobs, refused, err := c.o.Prepare(ctx, tx, d.Schedule)
		if err != nil {
			return nil, err
		}
		if refused != nil {
			d.fail(refused)
		}
		work[i] = jobs
	}
	return work, nil
}

// enqueueWithin inserts jobs within a savepoint, so that the transaction can continue after a rejection.
func (c *Submitter) enqueueWithin(ctx context.Context, tx pgx.Tx, jobs []store.NewJob) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := store.EnqueueIn(ctx, c.o.Store, tx, jobs, false)
		return err
	})
}

// takeKeys reserves each schedule's unique key for the first job that needs it. The other jobs are duplicates of that job or of the key's
// current holder. It locks the keys in a fixed order, so that two transactions cannot deadlock.
func (c *Submitter) takeKeys(ctx context.Context, tx pgx.Tx, list []decision) error {
	var keyed []*decision
	for i := range list {
		if list[i].UniqueKey != "" {
			keyed = append(keyed, &list[i])
		}
	}
	slices.SortStableFunc(keyed, func(a, b *decision) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.UniqueKey, b.UniqueKey))
	})
	type key struct{ kind, key string }
	holders := map[key]int64{} // the database would consider these keys free, because this transaction has not inserted its jobs yet
	for _, d := range keyed {
		for _, f := range d.withJobs() {
			k := key{d.Kind, d.UniqueKey}
			if holders[k] == 0 {
				holder, err := store.ReserveKey(ctx, c.o.Store, tx, k.kind, k.key, *f.JobID)
				if err != nil {
					return err
				}
				if holders[k] = holder; holder == *f.JobID {
					continue
				}
			}
			refuse(f, job.OccurrenceDuplicate, fmt.Sprintf("job %d holds the unique key", holders[k]))
		}
	}
	return nil
}
