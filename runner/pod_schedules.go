package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/calendar"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// newCalendar returns the calendar of this pod, which submits the jobs of schedules through p.
func newCalendar(p *pod) *calendar.Calendar {
	return calendar.New(calendar.Options{
		Store: p.front, Log: p.log, Metrics: p.metrics,
		MinInterval: p.opts.MinScheduleInterval, AlarmWithin: max(alarmWithin, 3*p.opts.HeartbeatEvery),
		Kinds: p.scheduledKinds, Boot: p.bootIfRegistered, Prepare: p.prepareScheduled,
		Wake: p.wake, WakePeers: p.wakePeers, Count: p.dbError,
	})
}

// alarmWithin is how far ahead the next fire is waited for: at least a minute.
const alarmWithin = time.Minute

// scheduledKinds lists the kinds whose schedules fire here: those that this program has handlers of, also where it does not run them, and
// those of the remote workers whose streams it serves.
func (p *pod) scheduledKinds() []string {
	kinds := slices.Collect(maps.Keys(p.kinds))
	p.sessions().each(func(e *engine) { kinds = append(kinds, e.mineAll...) })
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// bootIfRegistered returns the id of this pod; nil when it is none.
func (p *pod) bootIfRegistered() *string {
	if !p.lease.registered() {
		return nil
	}
	boot := p.boot()
	return &boot
}

// prepareScheduled makes the jobs of a schedule, with their lane: see [calendar.Options].
func (p *pod) prepareScheduled(ctx context.Context, tx pgx.Tx, s job.Schedule) (jobs calendar.Jobs, refused, err error) {
	w, err := p.scheduled(s)
	if err != nil {
		return nil, err, nil
	}
	w.lane, err = p.laneAsking(ctx, func(ctx context.Context, kind, named, other string) (string, bool, error) {
		return view.LaneForIn(ctx, p.front, tx, kind, named, other)
	}, w.kind, w.lane)
	if errors.Is(err, job.ErrUnknownLane) {
		return nil, err, nil
	}
	return func(ctx context.Context, ids []int64) ([]store.NewJob, func(error)) {
		_, span := p.tracing.submission(ctx, w.kind, w.lane, len(ids))
		rows := make([]store.NewJob, len(ids))
		for i, id := range ids {
			rows[i] = w.first(id, w.lane)
			rows[i].Trace = traceparent(span)
		}
		return rows, func(err error) { submitted(span, ids[0], err) }
	}, nil, err
}

// scheduled returns the submission of an occurrence of a schedule. The kind need not be known here: an operator may trigger it from a
// program without handlers.
func (p *pod) scheduled(s job.Schedule) (*submission, error) {
	w := &submission{kind: s.Kind, subject: &s.Subject, lane: s.Lane, priority: &s.Priority, pipeline: s.Name, maxCrashes: p.crashLimit(s.Kind)}
	if s.UniqueKey != "" {
		while := "active"
		w.uniqueKey, w.uniqueWhile = &s.UniqueKey, &while
	}
	var err error
	if w.args, err = encode(s.Args, job.MaxArgsBytes); err != nil {
		return nil, fmt.Errorf("encode the args of %s: %w", s.Kind, err)
	}
	if err := w.validate(); err != nil {
		return nil, fmt.Errorf("submit %s: %w", s.Kind, err)
	}
	return w, nil
}

// declaredSchedule is a schedule as the program declares it.
type declaredSchedule struct {
	name string
	set  job.ScheduleSetting
}

// declare writes the declared schedules into the database.
func (p *pod) declare(ctx context.Context, schedules []declaredSchedule) error {
	for _, d := range schedules {
		changed, err := admin.DeclareSchedule(ctx, p.front, d.name, d.set)
		if err != nil {
			return err
		}
		if len(changed) > 0 {
			if _, err := p.calendar.Parse(d.set, time.Now()); errors.Is(err, scheduler.ErrOver) {
				p.log.WarnContext(ctx, "schedule is declared after its moment: it does not fire", telemetry.Schedule, d.name, telemetry.Err, err)
			}
			p.log.InfoContext(ctx, "schedule set as the program declares it", telemetry.Schedule, d.name, telemetry.Settings, changed)
		}
	}
	return nil
}
