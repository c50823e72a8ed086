package view

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Failure returns the job whose failure started a pipeline, which is the parent of the pipeline's first job. Failure returns
// [job.ErrNotFound] if there is no such job or if it has been pruned.
func Failure(ctx context.Context, s *store.Store, pipeline int64) (f job.Failure, err error) {
	first, err := Job(ctx, s, pipeline)
	if err != nil {
		return f, err
	}
	if first.ParentID == nil {
		return f, fmt.Errorf("pipeline %d follows no failure: %w", pipeline, job.ErrNotFound)
	}
	failed, err := Job(ctx, s, *first.ParentID)
	if err != nil {
		return f, err
	}
	return job.Failure{JobID: failed.ID, PipelineID: failed.PipelineID, Kind: failed.Kind, Subject: failed.Subject, JSON: failed.Args,
		State: failed.State, Reason: valueOf(failed.Reason), Error: valueOf(failed.Error), ErrorClass: valueOf(failed.ErrorClass),
		ErrorCode: valueOf(failed.ErrorCode), Attempt: failed.Attempt}, nil
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
