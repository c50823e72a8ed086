package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// decision describes how a transaction processes a schedule.
type decision struct {
	job.Schedule
	now         time.Time
	occurrences []job.Occurrence
	next        time.Time // the first occurrence that remains to be processed; zero if there is none
	wrong       string    // why the schedule cannot fire as configured
	postponed   bool      // left to other pods, with its due time unchanged
	used        int       // number of job IDs used
}

// decideSchedule decides which due occurrences of a schedule submit jobs. The caller must have locked the schedule's row. The since
// argument is the time at which this pod started processing due schedules.
func decideSchedule(due admin.Due, since time.Time) decision {
	d := decision{Schedule: due.Schedule, now: due.Now}
	cal, err := Parse(due.Expression, due.Zone, due.Anchor)
	if errors.Is(err, ErrOver) {
		return d // its only time had already passed when it was declared or written through SQL, so it never fires
	}
	if err != nil {
		// If the zone is unknown, pods with newer time zone data may know it. Any other mistake was made through SQL, because SetSchedule
		// would have rejected it. The schedule fires again once the mistake has been corrected.
		_, unknown := time.LoadLocation(due.Zone)
		d.postponed, d.wrong = unknown != nil, job.Storable(err.Error(), 500)
		return d
	}
	from := cal.Next(due.Anchor)
	if due.Planned && due.NextAt != nil {
		from = *due.NextAt
	}
	d.occurrences, d.next = decideOccurrences(cal, due.ScheduleSetting, from, due.Now, since)
	d.used = len(d.occurrences)
	for i := range d.occurrences {
		d.occurrences[i].Schedule = due.Name
	}
	return d
}

// decideIn writes decisions for schedules whose rows are locked. It drops occurrences that have already been processed.
func (c *Submitter) decideIn(ctx context.Context, tx pgx.Tx, list []decision, ids []int64) error {
	need := 0
	for _, d := range list {
		need += d.used
	}
	if need > len(ids) {
		return shortOfIDs(need)
	}
	if err := c.fireIn(ctx, tx, list, ids, "system"); err != nil {
		return err
	}
	fired := false
	var plans []admin.Planned
	for i := range list {
		d := &list[i]
		if d.postponed {
			changed, err := admin.ScheduleWrong(ctx, c.o.Store, tx, d.Name, d.wrong)
			if err != nil {
				return err
			}
			if !changed { // already logged
				d.wrong = ""
			}
			continue
		}
		switch n := len(d.occurrences); {
		case n == 0 && d.wrong == "":
			d.wrong = d.Error
		case n > 0 && d.occurrences[n-1].Outcome == job.OccurrenceFailed:
			d.wrong = d.occurrences[n-1].Message
		}
		fired = fired || len(d.occurrences) > 0
		plans = append(plans, admin.Planned{Name: d.Name, Next: d.next, Wrong: d.wrong})
	}
	if err := admin.PlanSchedules(ctx, c.o.Store, tx, plans...); err != nil || !fired {
		return err
	}
	return failpoint.Hit(failpoint.FireCommit)
}

// fireIn records occurrences of schedules, and submits their jobs in chronological order. It skips occurrences that have already been
// processed, even if the schedules' rows suggest otherwise. There must be at least one ID per occurrence.
func (c *Submitter) fireIn(ctx context.Context, tx pgx.Tx, list []decision, ids []int64, actor string) error {
	active, err := c.active(ctx, tx, list) // read this before the transaction inserts any jobs, which must not count
	if err != nil {
		return err
	}
	var all []job.Occurrence
	for i := range list {
		for j := range list[i].occurrences {
			if f := &list[i].occurrences[j]; f.Outcome == job.OccurrenceFired {
				f.JobID = &ids[len(all)]
			}
			all = append(all, list[i].occurrences[j])
		}
	}
	if len(all) == 0 {
		return nil
	}
	ours, err := admin.InsertOccurrences(ctx, c.o.Store, tx, all)
	if err != nil {
		return err
	}
	for i := range list {
		n := 0
		for n < len(ours) && ours[n].Schedule == list[i].Name {
			n++
		}
		list[i].occurrences, ours = ours[:n:n], ours[n:]
		if list[i].Overlap == job.OverlapSkip {
			skipOverlap(list[i].occurrences, active[list[i].Name])
		}
	}
	if err := c.submitJobs(ctx, tx, list, actor); err != nil {
		return err
	}
	var reported, refused []job.Occurrence
	for _, d := range list {
		for _, f := range d.occurrences {
			if reported = append(reported, f); f.JobID == nil && f.Outcome != job.OccurrenceMissed {
				refused = append(refused, f)
			}
		}
	}
	if len(refused) > 0 {
		if err := admin.SettleOccurrences(ctx, c.o.Store, tx, refused); err != nil {
			return err
		}
	}
	return admin.WriteFireEvents(ctx, c.o.Store, tx, c.o.PodID(), actor, reported)
}

// active returns the schedules with an unfinished job, including later jobs of a pipeline that the schedule started. It considers only
// schedules whose policy depends on this.
func (c *Submitter) active(ctx context.Context, tx pgx.Tx, list []decision) (map[string]bool, error) {
	var names []string
	for _, d := range list {
		if d.Overlap == job.OverlapSkip && len(d.occurrences) > 0 {
			names = append(names, d.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	return admin.SchedulesActive(ctx, c.o.Store, tx, names)
}

// skipOverlap keeps only the first of a schedule's occurrences, or none if a job of the schedule is active. It marks the others as
// overlapping.
func skipOverlap(occurrences []job.Occurrence, active bool) {
	for i := range occurrences {
		f := &occurrences[i]
		if f.Outcome != job.OccurrenceFired || f.Manual {
			continue
		}
		if active {
			refuse(f, job.OccurrenceOverlap, "the job of the previous occurrence has not ended")
		}
		active = true
	}
}

// report logs and counts a committed decision, and wakes pods to claim the jobs.
func (c *Submitter) report(ctx context.Context, d decision) {
	jobs := 0
	for _, f := range d.occurrences {
		c.o.Metrics.Occurrences.WithLabelValues(string(f.Outcome)).Inc()
		switch f.Outcome {
		case job.OccurrenceFired:
			jobs++
			c.o.Metrics.Enqueued.Inc()
			if !f.Manual {
				c.o.Metrics.FireLateness.Observe(max(0, d.now.Sub(f.FireAt).Seconds()))
			}
			c.o.Log.DebugContext(ctx, "schedule fired", telemetry.Schedule, d.Name, telemetry.FireAt, f.FireAt, telemetry.JobID, *f.JobID)
		case job.OccurrenceFailed:
			c.o.Log.ErrorContext(ctx, "schedule's job was refused", telemetry.Schedule, d.Name, telemetry.FireAt, f.FireAt, telemetry.Why, f.Message)
		case job.OccurrenceMissed:
			c.o.Log.WarnContext(ctx, "schedule occurrences were missed", telemetry.Schedule, d.Name, telemetry.FireAt, f.FireAt, telemetry.Count, f.Missed+1)
		}
	}
	if d.wrong != "" && len(d.occurrences) == 0 {
		c.o.Log.ErrorContext(ctx, "schedule cannot fire", telemetry.Schedule, d.Name, telemetry.Why, d.wrong)
	}
	if jobs > 0 {
		c.o.Wake()
		c.o.WakePeers()
	}
}
