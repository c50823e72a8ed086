package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// Delete removes a job that has ended; by its first job a pipeline is removed as a whole, once all of it has ended. Its events stay
// until their time is over. It returns how many jobs were removed.
//
// Errors: [job.ErrNotFound], [job.ErrNotTerminal], [job.ErrPartOfPipeline] for a later step, and [job.ErrOutcomeUnknown]: asking
// again is safe.
func (a Admin) Delete(ctx context.Context, id int64, actor string) (int, error) {
	n, err := admin.Delete(ctx, a.pod.Commands, id, named(actor))
	if err != nil {
		return 0, a.pod.CommandError(err)
	}
	return n, nil
}
