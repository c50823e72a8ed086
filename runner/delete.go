package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// Delete deletes a job that has ended, and returns the number of deleted jobs. The id of a pipeline's first job deletes the whole
// pipeline, once all its jobs have ended. Events are kept until their retention is over.
//
// Errors: [job.ErrNotFound], [job.ErrNotTerminal], [job.ErrPartOfPipeline] for a later step, and [job.ErrOutcomeUnknown], after
// which the call can be repeated.
func (a Admin) Delete(ctx context.Context, id int64, actor string) (int, error) {
	n, err := admin.Delete(ctx, a.pod.Commands, id, named(actor))
	if err != nil {
		return 0, a.pod.CommandError(err)
	}
	return n, nil
}
