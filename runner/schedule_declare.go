package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// ScheduleOption is an option for a declared schedule or for its jobs. A schedule also accepts the submission options [Subject], [Key],
// [Lane], [Priority], and [Unique] with [WhileActive].
type ScheduleOption interface{ schedule(d *declaration) }

type scheduleOption func(s *job.ScheduleSetting)

func (o scheduleOption) schedule(d *declaration) { o(&d.Set) }

type declarationOption func(d *declaration)

func (o declarationOption) schedule(d *declaration) { o(d) }

// Zone sets the time zone of the expression by its IANA name, such as Europe/Zurich. Default UTC.
func Zone(name string) ScheduleOption {
	return scheduleOption(func(s *job.ScheduleSetting) { s.Zone = name })
}

// CatchUp submits a job for each of the latest n missed occurrences, with n from 1 to 1000. By default, one job is submitted for all of
// them.
func CatchUp(n int) ScheduleOption {
	return declarationOption(func(d *declaration) { d.missed(job.MissedCatchUp, n) })
}

// SkipMissed submits no job for missed occurrences. By default, one job is submitted for all of them.
func SkipMissed() ScheduleOption {
	return declarationOption(func(d *declaration) { d.missed(job.MissedSkip, job.DefaultCatchUp) })
}

// SkipOverlap skips an occurrence if the job of an earlier occurrence, or a job that followed from it, has not finished. By default, the
// job is submitted anyway.
func SkipOverlap() ScheduleOption {
	return scheduleOption(func(s *job.ScheduleSetting) { s.Overlap = job.OverlapSkip })
}

// declaration is a schedule declared by the program.
type declaration struct {
	pod.Schedule
	args  job.Args
	job   submission // the options for its jobs
	wrong error      // an error in its options
}

// missed sets the policy for missed occurrences.
func (d *declaration) missed(how job.Missed, catchUp int) {
	if d.Set.Missed != job.MissedCoalesce && d.Set.Missed != how {
		d.wrong = fmt.Errorf("%w: CatchUp and SkipMissed contradict each other", job.ErrInvalidSchedule)
	}
	d.Set.Missed, d.Set.CatchUp = how, catchUp
}

// DeclareSchedule declares a schedule. Its job is submitted whenever the expression fires, once across all pods. An expression has five or
// six cron fields, or is a macro such as @daily, "@every 15m" or "@at 2027-01-31T03:00"; see docs/scheduling.md.
//
// Call it before [Runner.Run]. Run creates the schedule if the name is new, and applies the settings that the program has changed since its
// last run. Settings that an operator has changed are kept, and a schedule that an operator has deleted stays deleted. A schedule that the
// program no longer declares remains until it is deleted. If the time of an @at has already passed when it is first declared, it never
// fires, and a warning is logged.
//
// Run returns all mistakes as one error, with [job.ErrInvalidSchedule] or [job.ErrUnknownKind]. DeclareSchedule panics only after Run has been
// called.
func (r *Runner) DeclareSchedule(name, expression string, args job.Args, options ...ScheduleOption) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		panic(fmt.Sprintf("runner: schedule %q is declared after Run", name))
	}
	if slices.ContainsFunc(r.declared, func(d declaration) bool { return d.Name == name }) {
		r.mistakes = append(r.mistakes, fmt.Errorf("%w: schedule %q is declared twice", job.ErrInvalidSchedule, name))
		return
	}
	d := declaration{Schedule: pod.Schedule{Name: name, Set: job.DefaultSchedule()}, args: args}
	d.Set.Expression = expression
	for i, o := range options {
		if o == nil {
			d.wrong = fmt.Errorf("%w: option %d is nil", job.ErrInvalidSchedule, i+1)
			continue
		}
		o.schedule(&d)
	}
	r.declared = append(r.declared, d)
}

// declareNow writes the declared schedules to the database, whether or not Run is called later.
func (r *Runner) declareNow(ctx context.Context) error {
	r.mu.Lock()
	list, err := r.checkDeclared()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.pod.Declare(ctx, list)
}

// checkDeclared returns the declared schedules, or all mistakes in handlers and schedules as one error.
func (r *Runner) checkDeclared() (list []pod.Schedule, err error) {
	errs := slices.Clone(r.mistakes)
	for i := range r.declared {
		d := &r.declared[i]
		if err := r.complete(d); err != nil {
			errs = append(errs, fmt.Errorf("%w (schedule %q)", err, d.Name))
		}
		list = append(list, d.Schedule)
	}
	return list, errors.Join(errs...)
}

// complete derives the schedule's settings from its arguments and options.
func (r *Runner) complete(d *declaration) error {
	switch d.args.(type) {
	case nil, chain, withOptions:
		return fmt.Errorf("%w: a schedule submits a single job: its handler decides the next step", job.ErrInvalidSchedule)
	}
	w := &d.job
	if err := errors.Join(d.wrong, w.wrong); err != nil {
		return err
	}
	if w.Delay != 0 || w.MaxAttempts != nil || w.KindAttempts != nil || w.IdempotencyKey != "" || w.Submitter != "" || w.Pipeline != "" || w.Approval || w.StartBy != 0 || w.Ordered || w.AllowUnregistered ||
		w.failure.args != nil || w.When != job.AfterSuccess || w.schema != "" ||
		w.Submission.Replace || w.UniqueWhile != nil && *w.UniqueWhile != string(WhileActive) {
		return fmt.Errorf("%w: its jobs accept only a subject, a key, a lane, a priority and a unique key while active", job.ErrInvalidSchedule)
	}
	s := &d.Set
	var err error
	if s.Kind = d.args.Kind(); r.pod.Kinds[s.Kind] == nil {
		return fmt.Errorf("%w: kind %q: register its handler", job.ErrUnknownKind, s.Kind)
	}
	if s.Args, err = work.EncodeArgs(s.Kind, d.args); err != nil {
		return err
	}
	s.Lane = w.Lane
	if w.Subject != nil {
		s.Subject = *w.Subject
	}
	if w.Key != nil {
		s.Key = *w.Key
	}
	if w.Priority != nil {
		s.Priority = *w.Priority
	}
	if w.UniqueKey != nil {
		s.UniqueKey = *w.UniqueKey
	}
	if _, err = r.pod.Submitter.Parse(*s, time.Now()); errors.Is(err, scheduler.ErrOver) {
		err = nil // an @at in the past is allowed because the program may restart after that time
	}
	return errors.Join(job.ValidateScheduleName(d.Name), s.Validate(), err)
}
