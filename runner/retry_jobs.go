package runner

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Retry retries a failed or cancelled job in a new epoch. If args is not nil, it replaces the job's arguments. The job's fence continues
// to increase, its attempts and crashes are counted from zero again, and the job holds its unique key again until it is claimed.
//
// A job that fanned out does not run again: it waits for its unsuccessful branches, which are retried in the same way. A retried branch
// counts toward its fan-out again if the fan-out has not finished; otherwise it runs independently. A job that needed approval when it was
// submitted needs it again if it never ran, or if its arguments have changed. Retry returns the ids of the jobs that it made pending.
//
// It returns [job.ErrNotFound] if the job does not exist, [job.ErrNotFailed] if it is neither failed nor cancelled, [job.ErrStillEnding] if
// related jobs have not ended yet, and [job.ErrOutcomeUnknown] if the connection was lost. It returns [job.ErrInvalidArgs] if args is
// invalid, and [job.ErrInvalid] if args is set for a job that fanned out. It returns [job.ErrPruned] if data that it needs was pruned or
// erased, and [job.ErrKeyHeld] if another job holds a unique key that the retry needs.
func (a Admin) Retry(ctx context.Context, id int64, actor string, args any) ([]int64, error) {
	encoded, err := encodeNewArgs(args)
	if err != nil {
		return nil, fmt.Errorf("%w (the new args of job %d)", err, id)
	}
	again, err := admin.Retry(ctx, a.pod.Commands, id, encoded, named(actor))
	if err != nil {
		return nil, a.pod.CommandError(err)
	}
	a.wakeRetried(ctx)
	return again, nil
}

// encodeNewArgs encodes a retry's new arguments. It returns nil if args is nil, which leaves them unchanged.
func encodeNewArgs(args any) (json.RawMessage, error) {
	if args == nil {
		return nil, nil
	}
	return work.Encode(args, job.MaxArgsBytes)
}

// wakeRetried settles fan-outs after a retry and wakes the pods to claim the retried jobs.
func (a Admin) wakeRetried(ctx context.Context) {
	a.pod.SettleAfter(ctx) // a retried fan-out may have no unfinished branches left
	a.pod.WakeDue()
	a.pod.WakePeers()
}
