package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// This file implements the submission of many jobs without keys in a single commit.

// SubmitMany submits jobs without keys in a single statement. All of them must have the same delay.
func (sub *submitter) SubmitMany(ctx context.Context, list []*work.Submission) ([]int64, error) {
	rows, err := sub.newRows(ctx, nil, list)
	if err != nil {
		return nil, err
	}
	ctx, span := sub.startMany(ctx, rows)
	entered, err := sub.insert(ctx, sub.PodID(), rows)
	telemetry.EndSubmission(span, 0, err)
	if err != nil {
		return nil, err
	}
	sub.Metrics.Enqueued.Add(float64(len(rows)))
	var lines []store.Line
	delays := map[int64]bool{} // the same for all jobs, or a moment if the job's lane is still to be made
	for _, n := range rows {
		delays[n.DelayMillis] = true
		switch entered.Places[n.ID] {
		case store.PlacedWaiting, store.PlacedKeyed:
			lines = append(lines, n.Lines()...)
		case "": // inserted with COPY
			lines = append(lines, store.Lines("", "", n.Key)...)
		}
	}
	for delay := range delays {
		sub.WakeAfter(time.Duration(delay) * time.Millisecond) // with COPY, jobs with a subject are parked as due
	}
	sub.LinesChanged(lines...)
	return idsOf(rows), nil
}

// SubmitManyTx is like SubmitMany, but uses the caller's transaction.
func (sub *submitter) SubmitManyTx(ctx context.Context, tx pgx.Tx, list []*work.Submission) ([]int64, error) {
	rows, err := sub.newRows(ctx, tx, list)
	if err != nil {
		return nil, sub.Commands.Explain(err)
	}
	ctx, span := sub.startMany(ctx, rows)
	insert := func() error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return store.EnqueueManyIn(ctx, sub.Commands, tx, rows) })
	}
	err = sub.withFreeIDs(ctx, tx, each(rows), insert(), insert)
	telemetry.EndSubmission(span, 0, err)
	if err != nil {
		store.CloseStale(tx.Conn(), err, false)
		return nil, fmt.Errorf("submit %d jobs: %w", len(rows), err)
	}
	if !sub.NotificationsDisabled() {
		if err := sub.Commands.Notify(ctx, tx); err != nil {
			return nil, fmt.Errorf("submit %d jobs: %w", len(rows), err)
		}
	}
	return idsOf(rows), nil
}

// startMany starts a bulk submission's span and sets the jobs' trace context.
func (sub *submitter) startMany(ctx context.Context, rows []store.NewJob) (context.Context, trace.Span) {
	ctx, span := sub.Tracing.StartSubmission(ctx, rows[0].Kind, rows[0].Lane, len(rows))
	if at := telemetry.Traceparent(span); at != "" {
		for i := range rows {
			rows[i].Trace = at
		}
	}
	return ctx, span
}

func idsOf(rows []store.NewJob) []int64 {
	ids := make([]int64, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
	}
	return ids
}

// newRows checks submissions, which must not have keys, and builds their rows.
func (sub *submitter) newRows(ctx context.Context, tx pgx.Tx, list []*work.Submission) ([]store.NewJob, error) {
	rows := make([]store.NewJob, len(list))
	ids, err := sub.newIDs(ctx, tx, len(list))
	if err != nil {
		return nil, err
	}
	lanes := map[[2]string]*store.NewJob{} // the first job by kind and requested lane
	checked := map[string]bool{}           // lanes of steps
	for i, w := range list {
		if err := sub.CheckSubmission(w); err != nil {
			return nil, err
		}
		if w.UniqueKey != nil || w.IdempotencyKey != "" {
			return nil, fmt.Errorf("%w: submit many: keys are allowed only for single jobs", job.ErrInvalid)
		}
		if err := sub.checkStepLanes(ctx, tx, w, checked); err != nil {
			return nil, err
		}
		key := [2]string{w.Kind, w.Lane}
		if first := lanes[key]; first != nil {
			rows[i] = w.First(ids[i], first.Lane)
			rows[i].DelayMillis = max(rows[i].DelayMillis, first.DelayMillis)
			continue
		}
		lane, err := sub.LaneAsking(ctx, tx, w)
		if err != nil {
			return nil, err
		}
		rows[i] = w.First(ids[i], lane)
		lanes[key] = &rows[i]
	}
	return rows, nil
}
