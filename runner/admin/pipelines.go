package admin

import (
	"context"
	"fmt"
	"slices"

	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Pipeline returns the pipeline with the given id, which is the id of its first job. A single job is a pipeline too. Pipeline returns
// [job.ErrNotFound] if there is no such pipeline.
func (a Admin) Pipeline(ctx context.Context, id int64) (job.Pipeline, error) {
	return view.Pipeline(ctx, a.pod.Commands, id)
}

// CancelPipeline cancels every unfinished job of a pipeline and starts no further steps. Jobs that are not running end immediately; running
// jobs end when their handlers return. CancelPipeline returns all their ids. It returns [job.ErrNotFound] if there is no such pipeline, or
// [job.ErrAlreadyTerminal] if all its jobs have finished. After [job.ErrOutcomeUnknown], the call can be repeated.
func (a Admin) CancelPipeline(ctx context.Context, id int64) ([]int64, error) {
	p, err := view.Pipeline(ctx, a.pod.Commands, id)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	if p.Status.Over() {
		return nil, fmt.Errorf("cancel pipeline %d, status %s: %w", id, p.Status, job.ErrAlreadyTerminal)
	}
	var cancelled []int64
	d := &statements.AuditEntry{Actor: a.actor, Action: "pipeline.cancel", Target: fmt.Sprintf("pipeline %d", id), Before: map[string]any{"status": p.Status}}
	more, err := a.pod.CancelOpen(ctx, job.ReasonPipelineCancelled, a.actor, d, true, func(ctx context.Context, limit int) ([]int64, error) {
		return statements.OpenOfPipeline(ctx, a.pod.Commands, id, limit)
	}, func(id int64) { cancelled = append(cancelled, id) })
	if err != nil {
		return cancelled, fmt.Errorf("cancel pipeline %d: %w", id, a.pod.CommandError(err))
	}
	if err := a.pod.SettleFanOut(ctx, more...); err != nil {
		a.pod.Log.WarnContext(ctx, "fan-outs of a cancelled pipeline not settled yet", telemetry.Pipeline, id, telemetry.Err, a.pod.DBError(err))
	}
	slices.Sort(cancelled)
	return slices.Compact(cancelled), nil
}

// RetryPipeline retries a failed or cancelled pipeline, starting a new epoch of the failed step. If args is not nil, it replaces that job's
// arguments. A job that fanned out does not run again: it waits for its unsuccessful branches, which are retried in the same way. A
// deferred job runs again, and its successful parts still count. RetryPipeline returns the ids of the jobs that it made pending.
//
// It returns [job.ErrNotFound] if there is no such pipeline, [job.ErrNotFailed] if it is neither failed nor cancelled, [job.ErrStillEnding]
// if related jobs have not ended yet, and [job.ErrOutcomeUnknown] if the connection was lost. It returns [job.ErrInvalidArgs] if args is
// invalid, and [job.ErrInvalid] if args is set for a job that fanned out. It returns [job.ErrPruned] if data that it needs was pruned or
// erased, and [job.ErrKeyHeld] if another job holds one of their unique keys.
func (a Admin) RetryPipeline(ctx context.Context, id int64, args any) ([]int64, error) {
	encoded, err := encodeNewArgs(args)
	if err != nil {
		return nil, fmt.Errorf("retry pipeline %d: encode its args: %w", id, err)
	}
	p, err := view.Pipeline(ctx, a.pod.Commands, id)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	if !p.Status.Over() || p.Status == job.PipelineSucceeded || p.Status == job.PipelinePartial {
		return nil, fmt.Errorf("retry pipeline %d, status %s: %w", id, p.Status, job.ErrNotFailed)
	}
	again, err := statements.RetryPipeline(ctx, a.pod.Commands, p.LastJob, encoded, a.actor)
	if err != nil {
		return nil, a.pod.CommandError(err)
	}
	a.wakeRetried(ctx)
	return again, nil
}
