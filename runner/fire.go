package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/mutant"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// decided is what one transaction decided about a schedule.
type decided struct {
	name  string // empty: none was due
	now   time.Time
	fires []job.Fire
	wrong string // why it does not fire as it should
	leave bool   // it is left to other pods
	used  int    // job ids
}

// shortOfIDs says how many job ids a decision needs.
type shortOfIDs int

func (n shortOfIDs) Error() string { return fmt.Sprintf("%d job ids are needed", int(n)) }

// fireOne decides about the schedule that has been due longest. The fires, their jobs and the moment of the next one are one commit; a
// commit whose reply is lost is not asked for, since the row tells whoever looks next. It takes job ids from ids, and sees to more of
// them before its transaction: that has one connection, and never waits for a second one.
func (r *Runner) fireOne(ctx context.Context, passOver []string, at *time.Time, ids *[]int64) (d decided, err error) {
	need := 1
	if *ids == nil {
		need = 0 // as a rule nothing is due, and no id is to be lost for that
	}
	for {
		if short := need - len(*ids); short > 0 {
			more, err := r.front.NewIDs(ctx, short)
			if err != nil {
				return decided{}, err
			}
			*ids = append(*ids, more...)
		}
		err = r.front.Tx(ctx, func(tx pgx.Tx) error {
			d = decided{}
			due, ok, err := r.front.TakeDue(ctx, tx, r.calendar.looksAfter(), passOver, at)
			if err != nil || !ok {
				return err
			}
			d.name, d.now = due.Name, due.Now
			return r.decideIn(ctx, tx, due, *ids, &d)
		})
		*ids = (*ids)[d.used:]
		more, ok := errors.AsType[shortOfIDs](err)
		if !ok {
			return d, err
		}
		need = int(more)
	}
}

// decideIn decides about a schedule whose row is locked.
func (r *Runner) decideIn(ctx context.Context, tx pgx.Tx, due store.Due, ids []int64, d *decided) error {
	cal, err := scheduler.Parse(due.Expression, due.Zone, due.Anchor)
	if _, unknown := time.LoadLocation(due.Zone); unknown != nil {
		// Pods whose zones are of another year may know it. Only what is news is told.
		d.leave = true
		told, err := r.front.ScheduleWrong(ctx, tx, due.Name, clean(err.Error(), 500))
		if told {
			d.wrong = clean(unknown.Error(), 500)
		}
		return err
	}
	if err != nil {
		// Not as SetSchedule would have it: somebody's SQL. It fires again when it is set right.
		d.wrong = clean(err.Error(), 500)
		return r.front.PlanSchedule(ctx, tx, due.Name, time.Time{}, d.wrong)
	}
	from := cal.Next(due.Anchor)
	if due.Planned && due.NextAt != nil {
		from = *due.NextAt
	}
	list, next := decide(cal, due.ScheduleSetting, from, due.Now)
	if len(list) > len(ids) {
		return shortOfIDs(len(list))
	}
	d.used = len(list)
	if d.fires, err = r.fireIn(ctx, tx, due.Schedule, list, ids, "system"); err != nil {
		return err
	}
	for _, f := range d.fires {
		d.wrong = ""
		if f.Outcome == job.FireFailed {
			d.wrong = f.Message
		}
	}
	if len(d.fires) == 0 {
		d.wrong = due.Error
	}
	if err := r.front.PlanSchedule(ctx, tx, due.Name, next, d.wrong); err != nil || len(d.fires) == 0 {
		return err
	}
	return failpoint.Hit(failpoint.FireSubmitted)
}

// fireIn writes fires of a schedule down and submits their jobs, in the order of their times. Only those that nobody decided before are
// decided here, whatever the schedule's row says. There is one of ids at least for each.
func (r *Runner) fireIn(ctx context.Context, tx pgx.Tx, s job.Schedule, list []job.Fire, ids []int64, actor string) (_ []job.Fire, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	active := false // its own jobs are not counted: they are not there yet
	if s.Overlap == job.OverlapSkip {
		if active, err = r.front.ScheduleActive(ctx, tx, s.Name); err != nil {
			return nil, err
		}
	}
	for i := range list {
		list[i].Schedule = s.Name
		if list[i].Outcome == job.FireFired {
			list[i].JobID = &ids[i]
		}
	}
	all := list
	if list, err = r.front.InsertFires(ctx, tx, s.Name, list); err != nil {
		return nil, err
	}
	if mutant.Is(mutant.BlindFire) {
		list = all
	}
	for i := range list {
		f := &list[i]
		if s.Overlap == job.OverlapSkip && f.Outcome == job.FireFired && !f.Manual {
			if active {
				refuse(f, job.FireOverlap, "the job of the fire before has not ended")
			}
			active = true
		}
	}
	if err := r.submitFires(ctx, tx, s, list, actor); err != nil {
		return nil, err
	}
	var refused []job.Fire
	for _, f := range list {
		if f.JobID == nil && f.Outcome != job.FireMissed {
			refused = append(refused, f)
		}
	}
	if len(refused) > 0 {
		if err := r.front.SettleFires(ctx, tx, s.Name, refused); err != nil {
			return nil, err
		}
	}
	return list, r.front.TellFires(ctx, tx, r.ownBoot(), actor, s.Name, list)
}

func refuse(f *job.Fire, why job.FireOutcome, message string) {
	f.Outcome, f.JobID, f.Message = why, nil, message
}

// ownBoot is the id of this pod, if it is one.
func (r *Runner) ownBoot() *string {
	if !r.pod.registered() {
		return nil
	}
	boot := r.Boot()
	return &boot
}

// submitFires submits the jobs of fires in the transaction that decides them. Jobs that are refused make failed fires.
//
// They have no submitter, as what the program submits itself: who may see only what he submitted sees none of them, whatever he is
// called. Their pipelines have the schedule's name.
func (r *Runner) submitFires(ctx context.Context, tx pgx.Tx, s job.Schedule, list []job.Fire, actor string) error {
	fail := func(err error) {
		for i := range list {
			if list[i].JobID != nil {
				refuse(&list[i], job.FireFailed, clean(err.Error(), 500))
			}
		}
	}
	w, err := r.scheduled(s)
	if err != nil {
		fail(err)
		return nil
	}
	lane, err := r.laneAsking(ctx, func(ctx context.Context, kind, named, other string) (string, bool, error) {
		return r.front.LaneForIn(ctx, tx, kind, named, other)
	}, w.kind, w.lane)
	if errors.Is(err, job.ErrUnknownLane) {
		fail(err)
		return nil
	}
	if err != nil {
		return err
	}
	if s.UniqueKey != "" {
		if err := r.takeKey(ctx, tx, s, list); err != nil {
			return err
		}
	}
	var jobs []store.NewJob
	for _, f := range list {
		if f.JobID != nil {
			n := w.first(*f.JobID, lane)
			n.Actor = actor
			jobs = append(jobs, n)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	ctx, span := r.tracing.submission(ctx, w.kind, lane, len(jobs))
	for i := range jobs {
		jobs[i].Trace = traceparent(span)
	}
	places, err := r.enqueueWithin(ctx, tx, jobs)
	submitted(span, jobs[0].ID, err)
	if store.Refused(err) {
		fail(err)
		return nil
	}
	if err != nil {
		return err
	}
	for i := range list {
		if id := list[i].JobID; id != nil {
			list[i].State = job.Pending
			if places[*id] == store.PlacedAwaiting {
				list[i].State = job.AwaitingApproval
			}
		}
	}
	return nil
}

// enqueueWithin inserts jobs so that the transaction goes on when they are refused.
func (r *Runner) enqueueWithin(ctx context.Context, tx pgx.Tx, jobs []store.NewJob) (places map[int64]store.Place, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		places, err = r.front.EnqueueIn(ctx, tx, jobs)
		return err
	})
	return places, err
}

// takeKey takes the unique key of a schedule for the first of its jobs; all others are duplicates, of that one or of who holds it.
func (r *Runner) takeKey(ctx context.Context, tx pgx.Tx, s job.Schedule, list []job.Fire) error {
	holder := int64(0)
	for i := range list {
		f := &list[i]
		if f.JobID == nil {
			continue
		}
		if holder == 0 {
			var err error
			if holder, err = r.front.ReserveKey(ctx, tx, s.Kind, s.UniqueKey, *f.JobID); err != nil {
				return err
			}
			if holder == *f.JobID {
				continue
			}
		}
		refuse(f, job.FireDuplicate, fmt.Sprintf("job %d holds the unique key", holder))
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

// fired tells what was decided, after its commit, and wakes whoever may run it.
func (r *Runner) fired(ctx context.Context, d decided) {
	jobs := 0
	for _, f := range d.fires {
		r.metrics.Fires.WithLabelValues(string(f.Outcome)).Inc()
		switch f.Outcome {
		case job.FireFired:
			jobs++
			r.metrics.Enqueued.Inc()
			if !f.Manual {
				r.metrics.FireLateness.Observe(max(0, d.now.Sub(f.FireAt).Seconds()))
			}
			r.log.DebugContext(ctx, "schedule fired", telemetry.Schedule, d.name, telemetry.FireAt, f.FireAt, telemetry.JobID, *f.JobID)
		case job.FireFailed:
			r.log.ErrorContext(ctx, "job of a schedule was refused", telemetry.Schedule, d.name, telemetry.FireAt, f.FireAt, telemetry.Why, f.Message)
		case job.FireMissed:
			r.log.WarnContext(ctx, "fires of a schedule were missed", telemetry.Schedule, d.name, telemetry.FireAt, f.FireAt, telemetry.Count, f.Missed+1)
		}
	}
	if d.wrong != "" && len(d.fires) == 0 {
		r.log.ErrorContext(ctx, "schedule cannot fire", telemetry.Schedule, d.name, telemetry.Why, d.wrong)
	}
	if jobs > 0 {
		r.wake()
		r.wakePeers()
	}
}
