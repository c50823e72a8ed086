package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

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

// fail says of all fires that would make a job that it was refused.
func (d *decided) fail(err error) {
	for _, f := range d.withJobs() {
		refuse(f, job.FireFailed, clean(err.Error(), 500))
	}
}

// submitFires submits the jobs of fires in the transaction that decides them. Jobs that are refused make failed fires; but what is
// refused to one of several schedules is an error for all, which are to be decided one by one then.
//
// They need no approval, whatever their lane requires: to set or trigger such a schedule takes the permission to approve, which the API
// checks; the program and whoever writes SQL have it.
//
// They have no submitter, as what the program submits itself: who may see only what he submitted sees none of them, whatever he is
// called. Their pipelines have the schedule's name.
func (r *Runner) submitFires(ctx context.Context, tx pgx.Tx, list []decided, actor string) error {
	work, err := r.workOf(ctx, tx, list)
	if err != nil {
		return err
	}
	if err := r.takeKeys(ctx, tx, list); err != nil {
		return err
	}
	var jobs []store.NewJob
	var spans []func(error)
	for i := range list {
		fires := list[i].withJobs()
		if len(fires) == 0 {
			continue
		}
		w := work[i]
		_, span := r.tracing.submission(ctx, w.kind, w.lane, len(fires))
		spans = append(spans, ending(span, *fires[0].JobID))
		for _, f := range fires {
			n := w.first(*f.JobID, w.lane)
			n.Actor, n.Trace, n.Approved = actor, traceparent(span), true
			jobs = append(jobs, n)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	err = r.enqueueWithin(ctx, tx, jobs)
	for _, end := range spans {
		end(err)
	}
	if store.Refused(err) && !r.front.IDTaken(err) && len(list) == 1 {
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

func ending(span trace.Span, id int64) func(error) {
	return func(err error) { submitted(span, id, err) }
}

// workOf makes what the fires of each schedule submit, with its lane. What cannot be submitted is refused to its schedule alone.
func (r *Runner) workOf(ctx context.Context, tx pgx.Tx, list []decided) ([]*submission, error) {
	ask := func(ctx context.Context, kind, named, other string) (string, bool, error) {
		return r.front.LaneForIn(ctx, tx, kind, named, other)
	}
	work := make([]*submission, len(list))
	for i := range list {
		d := &list[i]
		if len(d.withJobs()) == 0 {
			continue
		}
		w, err := r.scheduled(d.Schedule)
		if err != nil {
			d.fail(err)
			continue
		}
		w.lane, err = r.laneAsking(ctx, ask, w.kind, w.lane)
		if errors.Is(err, job.ErrUnknownLane) {
			d.fail(err)
			continue
		}
		if err != nil {
			return nil, err
		}
		work[i] = w
	}
	return work, nil
}

// enqueueWithin inserts jobs so that the transaction goes on when they are refused.
func (r *Runner) enqueueWithin(ctx context.Context, tx pgx.Tx, jobs []store.NewJob) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := r.front.EnqueueIn(ctx, tx, jobs)
		return err
	})
}

// takeKeys takes the unique keys of schedules, each for the first job that wants it; all others are duplicates, of that one or of who
// holds it. It goes by the order of the keys, so that two transactions never wait for each other.
func (r *Runner) takeKeys(ctx context.Context, tx pgx.Tx, list []decided) error {
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
				holder, err := r.front.ReserveKey(ctx, tx, k.kind, k.key, *f.JobID)
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

// scheduled is what a fire of a schedule submits.
func (r *Runner) scheduled(s job.Schedule) (*submission, error) {
	options := []EnqueueOption{Priority(s.Priority), Pipeline(s.Name), Lane(s.Lane), Subject(s.Subject)}
	if s.UniqueKey != "" {
		options = append(options, Unique(s.UniqueKey, WhileActive))
	}
	if r.kinds[s.Kind] == nil {
		options = append(options, Foreign()) // an operator's fire, from a program without handlers
	}
	return r.newSubmission(Raw{Name: s.Kind, JSON: s.Args}, options)
}
