package pod

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// newSubmitter returns this pod's submitter, which submits the jobs of schedules through p.
func newSubmitter(p *Pod) *scheduler.Submitter {
	return scheduler.NewSubmitter(scheduler.SubmitterOptions{
		Store: p.Commands, Log: p.Log, Metrics: p.Metrics,
		MinInterval: p.opts.MinScheduleInterval, AlarmWithin: max(alarmWithin, 3*p.opts.HeartbeatInterval),
		Kinds: p.scheduledKinds, PodID: p.bootIfRegistered, Prepare: p.prepareScheduled,
		Wake: p.WakeDue, WakePeers: p.WakePeers, Count: p.DBError,
	})
}

// alarmWithin is the minimum time ahead for which a timer is set for the next occurrence.
const alarmWithin = time.Minute

// scheduledKinds returns the kinds whose schedules fire on this pod: all kinds with a handler in this program, even if the program does not
// run them, and the kinds of the remote workers that the pod serves.
func (p *Pod) scheduledKinds() []string {
	kinds := slices.Collect(maps.Keys(p.Kinds))
	p.sessions().Each(func(e *engine.Engine) { kinds = append(kinds, e.HandledKinds...) })
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// bootIfRegistered returns this pod's ID, or nil if the pod is not registered.
func (p *Pod) bootIfRegistered() *string {
	if !p.Lease.Registered() {
		return nil
	}
	podID := p.PodID()
	return &podID
}

// prepareScheduled implements the Prepare option of a submitter. See [scheduler.SubmitterOptions].
func (p *Pod) prepareScheduled(ctx context.Context, tx pgx.Tx, s job.Schedule) (jobs scheduler.NewJobs, refused, err error) {
	w, err := p.submissionOf(s)
	if err != nil {
		return nil, err, nil
	}
	w.Lane, err = p.LaneAsking(ctx, tx, w)
	if errors.Is(err, job.ErrUnknownLane) {
		return nil, err, nil
	}
	return func(ctx context.Context, ids []int64) ([]store.NewJob, func(error)) {
		_, span := p.Tracing.StartSubmission(ctx, w.Kind, w.Lane, len(ids))
		rows := make([]store.NewJob, len(ids))
		for i, id := range ids {
			rows[i] = w.First(id, w.Lane)
			rows[i].Trace = telemetry.Traceparent(span)
		}
		return rows, func(err error) { telemetry.EndSubmission(span, ids[0], err) }
	}, nil, err
}

// submissionOf returns the submission for an occurrence of a schedule. The program need not know the kind, because operators can trigger a
// schedule from a program without handlers.
func (p *Pod) submissionOf(s job.Schedule) (*work.Submission, error) {
	args, err := work.EncodeRawArgs(s.Kind, s.Args)
	if err != nil {
		return nil, err
	}
	w := &work.Submission{Kind: s.Kind, Args: args, Priority: &s.Priority, Pipeline: s.Name, Lane: s.Lane, Subject: &s.Subject, AllowUnregistered: true}
	if s.Key != "" {
		w.Key = &s.Key
	}
	if s.UniqueKey != "" {
		while := work.WhileActive
		w.UniqueKey, w.UniqueWhile = &s.UniqueKey, &while
	}
	return w, p.CheckSubmission(w)
}

// Schedule is a schedule that the program declares.
type Schedule struct {
	Name string
	Set  job.ScheduleSetting
}

// Declare writes the declared schedules to the database.
func (p *Pod) Declare(ctx context.Context, schedules []Schedule) error {
	for _, d := range schedules {
		changed, err := admin.DeclareSchedule(ctx, p.Commands, d.Name, d.Set)
		if err != nil {
			return err
		}
		if len(changed) > 0 {
			now, err := view.Now(ctx, p.Commands)
			if err != nil {
				return err
			}
			if _, err := p.Submitter.Parse(d.Set, now); errors.Is(err, scheduler.ErrOver) {
				p.Log.WarnContext(ctx, "schedule was declared after its time: it does not fire", telemetry.Schedule, d.Name, telemetry.Err, err)
			}
			p.Log.InfoContext(ctx, "schedule set from the program's declaration", telemetry.Schedule, d.Name, telemetry.Settings, changed)
		}
	}
	return nil
}
