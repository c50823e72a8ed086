package runner

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/job"
)

// Wait waits until a job has ended and returns it, succeeded or not, wherever it runs: from any pod, and from a program that
// runs no jobs at all. A job that is waiting for its next attempt, or that an operator retried, has not ended.
//
// The end of a job in this process is seen at once, that of others by looking: after 50 ms at first and at least once a
// second. However many wait in this process, a look is one statement. An outage of the database is waited through. It
// returns [job.ErrNotFound] when there is no such job, and ctx's cause when that ends first.
func (r *Runner) Wait(ctx context.Context, id int64) (job.Job, error) {
	return r.pod.Waiters.Wait(ctx, id)
}

// Result waits for a job as [Runner.Wait] does and decodes its result. A job that succeeded without one gives the zero value;
// of one that failed or was cancelled the error is a [*job.EndError], for [errors.As].
func Result[T any](ctx context.Context, r *Runner, id int64) (result T, err error) {
	j, err := r.Wait(ctx, id)
	if err != nil {
		return result, err
	}
	if j.State != job.Succeeded {
		return result, endError(j)
	}
	if len(j.Result) == 0 {
		return result, nil
	}
	if err := json.Unmarshal(j.Result, &result); err != nil {
		return result, fmt.Errorf("decode the result of job %d: %w", id, err)
	}
	return result, nil
}

func endError(j job.Job) error {
	e := &job.EndError{ID: j.ID, State: j.State}
	if j.Reason != nil {
		e.Reason = *j.Reason
	}
	if j.Error != nil {
		e.Message = *j.Error
	}
	if j.ErrorClass != nil {
		e.Class = *j.ErrorClass
	}
	if j.ErrorCode != nil {
		e.Code = *j.ErrorCode
	}
	return e
}
