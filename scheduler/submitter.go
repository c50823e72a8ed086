package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// SubmitterOptions configures a [Submitter]. All fields are required.
type SubmitterOptions struct {
	Store   *store.Store
	Log     *slog.Logger
	Metrics *telemetry.Metrics

	// MinInterval is the shortest allowed interval between two occurrences of a schedule.
	MinInterval time.Duration
	// AlarmWithin is how far ahead a timer is set for the next occurrence. Occurrences beyond that are reported by later heartbeats.
	AlarmWithin time.Duration

	// Kinds returns the kinds whose schedules fire on this pod. They may include kinds that only other pods run, because submitting a job
	// takes no slot.
	Kinds func() []string
	// PodID returns this pod's ID, or nil if the pod is not registered.
	PodID func() *string
	// Prepare creates a schedule's jobs in the transaction that processes the schedule. If the jobs cannot be submitted, refused is the
	// reason.
	Prepare func(ctx context.Context, tx pgx.Tx, s job.Schedule) (jobs NewJobs, refused, err error)
	// Wake makes this pod claim jobs. WakePeers makes the other pods claim jobs.
	Wake, WakePeers func()
	// Count counts a database error and returns it.
	Count func(error) error
}

// NewJobs creates the rows of the jobs with the given IDs. The caller must pass the submission's result to ended.
type NewJobs func(ctx context.Context, ids []int64) (rows []store.NewJob, ended func(error))

// Submitter submits due schedules' jobs. It is safe for concurrent use.
type Submitter struct {
	o   SubmitterOptions
	due routine.Signal

	mu    sync.Mutex
	timer *Scheduler // nil unless Run is running

	byHand bool // Run does not fire schedules
}

// NewSubmitter returns a submitter. It does nothing until Run is called.
func NewSubmitter(o SubmitterOptions) *Submitter { return &Submitter{o: o, due: routine.NewSignal()} }

// ByHand makes schedules fire only through [Submitter.FireDue]. It is for tests whose clock differs from the database's. Call it before Run.
func (c *Submitter) ByHand() { c.byHand = true }

// Run fires due schedules until ctx is cancelled.
func (c *Submitter) Run(ctx context.Context) {
	if c.byHand {
		return
	}
	clock, err := New(c.o.Log)
	if err != nil {
		c.o.Log.ErrorContext(ctx, "schedules fire only with heartbeats", telemetry.Err, err)
	} else {
		c.mu.Lock()
		c.timer = clock
		c.mu.Unlock()
		var ticking sync.WaitGroup
		ticking.Go(func() { clock.Run(ctx) })
		defer ticking.Wait()
	}
	c.due.Set()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		}
		c.FireDue(ctx, nil)
		// A schedule that is still due was either locked by another pod or could not be processed. The next heartbeat reports it again.
		if now, next, err := admin.NextFire(ctx, c.o.Store, c.o.Kinds()); err != nil {
			_ = c.o.Count(err)
		} else {
			c.Apply(now, next)
		}
	}
}

// Apply takes the database's current time and the next occurrence's time, or nil if there is none. The process's clock only measures the
// interval between the two, and the next heartbeat corrects any clock error.
func (c *Submitter) Apply(now time.Time, next *time.Time) {
	if next == nil {
		return
	}
	switch left := next.Sub(now); {
	case left <= 0:
		c.due.Set()
	case left <= c.o.AlarmWithin:
		c.alarm(left)
	}
}

func (c *Submitter) alarm(left time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		return // Run begins with a sweep
	}
	if err := c.timer.After("occurrences", left, func(context.Context) { c.due.Set() }); err != nil {
		c.o.Log.DebugContext(context.Background(), "could not set a timer for the next occurrence: a heartbeat will fire it", telemetry.Err, err)
	}
}

// Parse parses a schedule's expression. It returns [job.ErrInvalidSchedule] if the expression is invalid or fires too often.
func (c *Submitter) Parse(s job.ScheduleSetting, anchor time.Time) (*Calendar, error) {
	cal, err := Parse(s.Expression, s.Zone, anchor)
	if err != nil {
		return nil, err
	}
	if least := cal.MinInterval(); least < c.o.MinInterval {
		return nil, fmt.Errorf("%w: expression %q fires every %s: want at least %s between occurrences", job.ErrInvalidSchedule, s.Expression, least, c.o.MinInterval)
	}
	return cal, nil
}

// First returns a schedule's first occurrence after its anchor. It implements [store.Plan].
func (c *Submitter) First(s job.ScheduleSetting, anchor time.Time) (time.Time, error) {
	cal, err := c.Parse(s, anchor)
	if err != nil {
		return time.Time{}, err
	}
	return cal.Next(anchor), nil
}

// Trigger submits a schedule's job now, in addition to the regular occurrences. It returns [job.ErrUnknownSchedule] if the schedule does
// not exist, [job.ErrConflict] if as is not nil and the schedule no longer has these settings, and [job.ErrInvalid] if the job is
// rejected.
func (c *Submitter) Trigger(ctx context.Context, name string, as *job.ScheduleSetting, actor string) (job.Occurrence, error) {
	s := c.o.Store
	var list []decision
	ids, err := s.NewIDs(ctx, 1)
	if err != nil {
		return job.Occurrence{}, err
	}
	trigger := func(tx pgx.Tx) error {
		schedule, now, err := admin.LockSchedule(ctx, s, tx, name, as)
		if err != nil {
			return err
		}
		at := now
		if schedule.NextAt != nil && at.Equal(*schedule.NextAt) {
			at = at.Add(time.Microsecond) // the schedule already has an occurrence at that time
		}
		fire := job.Occurrence{Schedule: name, FireAt: at, DecidedAt: now, Outcome: job.OccurrenceFired, Manual: true}
		list = []decision{{Schedule: schedule, now: now, occurrences: []job.Occurrence{fire}}}
		if err := c.fireIn(ctx, tx, list, ids, actor); err != nil {
			return err
		}
		switch occurrences := list[0].occurrences; {
		case len(occurrences) == 0:
			return fmt.Errorf("%w: trigger schedule %q: already triggered in the same microsecond", job.ErrInvalid, name)
		case occurrences[0].Outcome == job.OccurrenceFailed:
			return fmt.Errorf("%w: trigger schedule %q: %s", job.ErrInvalid, name, occurrences[0].Message)
		}
		return admin.AuditTrigger(ctx, s, tx, actor, list[0].occurrences[0])
	}
	err = s.Tx(ctx, trigger)
	for try := 0; s.IDTaken(err) && try < idTries; try++ {
		s.DropIDs()
		if ids, err = s.NewIDs(ctx, 1); err == nil {
			err = s.Tx(ctx, trigger)
		}
	}
	if err != nil {
		return job.Occurrence{}, err
	}
	c.report(ctx, list[0])
	return list[0].occurrences[0], nil
}
