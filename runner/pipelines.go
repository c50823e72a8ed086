package runner

import (
	"context"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Pipeline reads a pipeline by the id of its first job, also one of a single job: [job.ErrNotFound] when there is none.
func (a Admin) Pipeline(ctx context.Context, id int64) (job.Pipeline, error) {
	return view.Pipeline(ctx, a.pod.Commands, id)
}

// AbortPipeline cancels every job of a pipeline that has not ended, and inserts no next step: those that do not run end at once,
// those that do when their handlers return; it returns the ids of both. Errors: [job.ErrNotFound], [job.ErrAlreadyTerminal] when
// nothing of it is open; and [job.ErrOutcomeUnknown]: asking again is safe.
func (a Admin) AbortPipeline(ctx context.Context, id int64, actor string) ([]int64, error) {
	actor = named(actor)
	p, err := view.Pipeline(ctx, a.pod.Commands, id)
	if err != nil {
		return nil, a.pod.DBError(err)
	}
	if p.Status.Over() {
		return nil, fmt.Errorf("abort pipeline %d, status %s: %w", id, p.Status, job.ErrAlreadyTerminal)
	}
	var aborted []int64
	d := &admin.Deed{Actor: actor, Action: "pipeline.abort", Target: fmt.Sprintf("pipeline %d", id), Before: map[string]any{"status": p.Status}}
	more, err := a.pod.CancelOpen(ctx, job.ReasonAborted, actor, d, true, func(ctx context.Context, limit int) ([]int64, error) {
		return admin.OpenOfPipeline(ctx, a.pod.Commands, id, limit)
	}, func(ids ...int64) { aborted = append(aborted, ids...) })
	if err != nil {
		return aborted, fmt.Errorf("abort pipeline %d: %w", id, a.pod.CommandError(err))
	}
	if err := a.pod.SettleFanOut(ctx, more...); err != nil {
		a.pod.Log.WarnContext(ctx, "fan-outs of an aborted pipeline not settled yet", telemetry.Pipeline, id, telemetry.Err, a.pod.DBError(err))
	}
	slices.Sort(aborted)
	return slices.Compact(aborted), nil
}

// RunPipelineAgain makes a pipeline that failed or was cancelled go on from the step where it did, in that job's next epoch: with other
// arguments when args is not nil. A job that fanned out is not performed again: it waits for those of its branches that had not
// succeeded, which go on likewise. One that was deferred is performed again, and its parts that succeeded count. It returns the ids of
// the jobs that are pending again. Errors: [job.ErrNotFound], [job.ErrNotFailed], [job.ErrStillEnding], [job.ErrPruned] when
// branches are no longer kept, [job.ErrKeyHeld] when another job holds a unique key of theirs, [job.ErrInvalidArgs], [job.ErrInvalid] for arguments of a job that fanned out, and
// [job.ErrOutcomeUnknown].
func (a Admin) RunPipelineAgain(ctx context.Context, id int64, actor string, args any) ([]int64, error) {
	actor = named(actor)
	encoded, err := otherArgs(args)
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
	again, err := admin.RetryPipeline(ctx, a.pod.Commands, p.LastJob, encoded, actor)
	if err != nil {
		return nil, a.pod.CommandError(err)
	}
	a.wentAgain(ctx)
	return again, nil
}
