package runner

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/calendar"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// newCalendar returns the calendar of this pod, which submits the jobs of schedules through r.
func newCalendar(r *Runner) *calendar.Calendar {
	return calendar.New(calendar.Options{
		Store: r.front, Log: r.log, Metrics: r.metrics,
		MinInterval: r.opts.MinScheduleInterval, AlarmWithin: max(alarmWithin, 3*r.opts.HeartbeatEvery),
		Kinds: r.scheduledKinds, Boot: r.bootIfRegistered, Prepare: r.prepareScheduled,
		Wake: r.wake, WakePeers: r.wakePeers, Count: r.dbError,
	})
}

// alarmWithin is how far ahead the next fire is waited for: at least a minute.
const alarmWithin = time.Minute

// scheduledKinds lists the kinds whose schedules fire here: those that this program has handlers of, also where it does not run them, and
// those of the remote workers whose streams it serves.
func (r *Runner) scheduledKinds() []string {
	kinds := slices.Collect(maps.Keys(r.kinds))
	r.guests.each(func(g *Guest) { kinds = append(kinds, g.r.mineAll...) })
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// bootIfRegistered returns the id of this pod; nil when it is none.
func (r *Runner) bootIfRegistered() *string {
	if !r.lease.registered() {
		return nil
	}
	boot := r.Boot()
	return &boot
}

// prepareScheduled makes the jobs of a schedule, with their lane: see [calendar.Options].
func (r *Runner) prepareScheduled(ctx context.Context, tx pgx.Tx, s job.Schedule) (jobs calendar.Jobs, refused, err error) {
	w, err := r.scheduled(s)
	if err != nil {
		return nil, err, nil
	}
	w.lane, err = r.laneAsking(ctx, func(ctx context.Context, kind, named, other string) (string, bool, error) {
		return view.LaneForIn(ctx, r.front, tx, kind, named, other)
	}, w.kind, w.lane)
	if errors.Is(err, job.ErrUnknownLane) {
		return nil, err, nil
	}
	return func(ctx context.Context, ids []int64) ([]store.NewJob, func(error)) {
		_, span := r.tracing.submission(ctx, w.kind, w.lane, len(ids))
		rows := make([]store.NewJob, len(ids))
		for i, id := range ids {
			rows[i] = w.first(id, w.lane)
			rows[i].Trace = traceparent(span)
		}
		return rows, func(err error) { submitted(span, ids[0], err) }
	}, nil, err
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
