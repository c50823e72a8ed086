package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// Delete deletes a finished job and returns the number of jobs deleted. Given the id of a pipeline's first job, it deletes the whole
// pipeline, provided that all its jobs have finished. Events are kept until their retention period is over.
//
// It returns [job.ErrNotFound], [job.ErrNotTerminal], or [job.ErrPartOfPipeline] for a later step. After [job.ErrOutcomeUnknown], the call
// can be repeated.
func (a Admin) Delete(ctx context.Context, id int64, actor string) (int, error) {
	n, err := admin.Delete(ctx, a.pod.Commands, id, named(actor))
	if err != nil {
		return 0, a.pod.CommandError(err)
	}
	return n, nil
}
