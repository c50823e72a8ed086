package runner

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// RunAgain runs a job again that failed or was cancelled, in its next epoch: with other arguments when args is not nil. Its fence goes on
// rising, its attempts and crashes count anew, and it takes its unique key again until it is claimed. A job that fanned out is not
// performed again: it waits for those of its branches that had not succeeded, which go on likewise. A branch counts for its fan-out
// again while that has not ended; after that it runs for its own sake. One that awaits approval where it was submitted does so again if
// it never ran, or has other arguments now. It returns the ids of the jobs that are pending again.
//
// Errors: [job.ErrNotFound], [job.ErrNotFailed], [job.ErrStillEnding], [job.ErrPruned] when branches are no longer kept,
// [job.ErrKeyHeld], [job.ErrInvalidArgs], [job.ErrInvalid] for arguments of a job that fanned out, and [job.ErrOutcomeUnknown].
func (a Admin) RunAgain(ctx context.Context, id int64, actor string, args any) ([]int64, error) {
	encoded, err := otherArgs(args)
	if err != nil {
		return nil, fmt.Errorf("%w (the new args of job %d)", err, id)
	}
	again, err := admin.Retry(ctx, a.pod.Commands, id, encoded, named(actor))
	if err != nil {
		return nil, a.pod.CommandError(err)
	}
	a.wentAgain(ctx)
	return again, nil
}

// otherArgs encodes the arguments with which something is tried again; nil: those that it had.
func otherArgs(args any) (json.RawMessage, error) {
	if args == nil {
		return nil, nil
	}
	return work.Encode(args, job.MaxArgsBytes)
}

// wentAgain sees to it that jobs that were tried again are claimed.
func (a Admin) wentAgain(ctx context.Context) {
	if err := a.pod.SettleFanOuts(ctx); err != nil { // one that waits may wait for nothing
		a.pod.Log.WarnContext(ctx, "fan-outs of retried jobs not settled yet", telemetry.Err, a.pod.DBError(err))
	}
	a.pod.Wake()
	a.pod.WakePeers()
}
