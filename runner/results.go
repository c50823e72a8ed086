package runner

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// GetJob returns the job with the given id, or [job.ErrNotFound].
func (r *Runner) GetJob(ctx context.Context, id int64) (job.JobRow, error) {
	return view.Job(ctx, r.pod.Commands, id)
}

// Wait blocks until a job has finished on any pod, whether or not it succeeded, and returns the job. It also works in a program that runs
// no jobs. A job that is waiting for its next attempt, or that an operator has retried, has not finished.
//
// If the job finishes in this process, Wait returns immediately afterwards. Otherwise it polls, first after 50 ms and then at least once a
// second. All waiters in a process share one statement per poll. Wait keeps polling during a database outage. It returns [job.ErrNotFound]
// if the job does not exist, and the cause of ctx if ctx is done first.
func (r *Runner) Wait(ctx context.Context, id int64) (job.JobRow, error) {
	return r.pod.Waiters.Wait(ctx, id)
}

// Result waits for a job as [Runner.Wait] does and decodes its result. For a job without a result, it returns the zero value. For a job
// that failed or was cancelled, it returns a [*job.EndError]; use [errors.As] to inspect it.
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

func endError(j job.JobRow) error {
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
