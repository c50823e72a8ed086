package calendar

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// withJobs returns the fires that make a job, as far as is known.
func (d *decided) withJobs() (list []*job.Fire) {
	for i := range d.fires {
		if d.fires[i].JobID != nil {
			list = append(list, &d.fires[i])
		}
	}
	return list
}

func refuse(f *job.Fire, why job.FireOutcome, message string) {
	f.Outcome, f.JobID, f.Message = why, nil, message
}

// fail refuses the jobs of all fires that would make one.
func (d *decided) fail(err error) {
	for _, f := range d.withJobs() {
		refuse(f, job.FireFailed, job.Storable(err.Error(), 500))
	}
}

// submitFires submits the jobs of fires in the transaction that decides them. Jobs that are refused make failed fires; but what is
// refused to one of several schedules is an error for all, which are to be decided one by one then.
//
// They need no approval, whatever their lane requires: to set or trigger such a schedule takes the permission to approve, which the API
// checks; the program, and operators with SQL access, have it.
//
// They have no submitter, like jobs that the program submits itself: users who see only their own jobs see none of them.
// Their pipelines have the schedule's name.
func (c *Calendar) submitFires(ctx context.Context, tx pgx.Tx, list []decided, actor string) error {
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
		fires := list[i].withJobs()
		if len(fires) == 0 {
			continue
		}
		ids := make([]int64, len(fires))
		for k, f := range fires {
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

// prepare makes the jobs of each schedule. Jobs that cannot be submitted are refused to their schedule alone.
func (c *Calendar) prepare(ctx context.Context, tx pgx.Tx, list []decided) ([]Jobs, error) {
	work := make([]Jobs, len(list))
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

// enqueueWithin inserts jobs so that the transaction goes on when they are refused.
func (c *Calendar) enqueueWithin(ctx context.Context, tx pgx.Tx, jobs []store.NewJob) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := store.EnqueueIn(ctx, c.o.Store, tx, jobs)
		return err
	})
}

// takeKeys takes the unique keys of schedules, each for the first job that wants it; all others are duplicates, of that one or of who
// holds it. It goes by the order of the keys, so that two transactions never wait for each other.
func (c *Calendar) takeKeys(ctx context.Context, tx pgx.Tx, list []decided) error {
	var keyed []*decided
	for i := range list {
		if list[i].UniqueKey != "" {
			keyed = append(keyed, &list[i])
		}
	}
	slices.SortStableFunc(keyed, func(a, b *decided) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.UniqueKey, b.UniqueKey))
	})
	type key struct{ kind, key string }
	holders := map[key]int64{} // a job of ours is not there yet, so the database would take its key for one that is free
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
			refuse(f, job.FireDuplicate, fmt.Sprintf("job %d holds the unique key", holders[k]))
		}
	}
	return nil
}
