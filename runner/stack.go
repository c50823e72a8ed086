package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Stack returns the stack of the goroutine that is running a job's handler, on any pod or remote worker. The pod learns of the request
// through a notification or with its next heartbeat, and passes it on to the remote worker. The process stops all its goroutines for an
// instant to read their stacks.
//
// Stack returns [job.ErrNotFound] if the job does not exist, and [job.ErrNotRunning] if it is not running. It returns [job.ErrNoAnswer] if
// the pod or the remote worker does not answer, for example because the worker is of an earlier release or is not a Go program.
func (a Admin) Stack(ctx context.Context, id int64, actor string) (job.Stack, error) {
	asked, err := admin.AskStack(ctx, a.pod.Commands, id, named(actor))
	if err != nil {
		return job.Stack{}, a.pod.DBError(err)
	}
	answer, err := a.pod.AwaitAnswer(ctx, asked)
	if err == nil && answer.At == nil {
		err = job.ErrNotRunning // the job has just ended
	}
	if err != nil {
		return job.Stack{}, fmt.Errorf("read the stack of job %d on %s: %w", id, asked.Pod, err)
	}
	return job.Stack{Job: id, Fence: asked.Fence, Boot: asked.Boot, Pod: asked.Pod, At: *answer.At, Stack: answer.Text}, nil
}
