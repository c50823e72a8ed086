package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/wait"
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
	answer, err := a.answer(ctx, asked)
	if err == nil && answer.At == nil {
		err = job.ErrNotRunning // the job has just ended
	}
	if err != nil {
		return job.Stack{}, fmt.Errorf("read the stack of job %d on %s: %w", id, asked.Pod, err)
	}
	return job.Stack{Job: id, Fence: asked.Fence, Boot: asked.Boot, Pod: asked.Pod, At: *answer.At, Stack: answer.Text}, nil
}

// answerPollInterval is how often the answer of a pod is read. answerWithin is the minimum time that a pod has to answer.
const (
	answerPollInterval = 50 * time.Millisecond
	answerWithin       = 5 * time.Second
)

// answer waits for the answer to a request and then removes the request. It returns no answer if the claim has ended.
func (a Admin) answer(ctx context.Context, asked admin.Asked) (answer admin.Answer, err error) {
	a.pod.Follow(ctx)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
		defer cancel()
		_ = admin.RemoveRequest(ctx, a.pod.Commands, asked.ID) // best effort; otherwise maintenance removes the request
	}()
	for began := time.Now(); ; {
		if answer, err = admin.ReadAnswer(ctx, a.pod.Commands, asked.ID); err != nil || answer.At != nil || !answer.Held {
			return answer, a.pod.DBError(err)
		}
		if time.Since(began) > max(answerWithin, 2*a.pod.Opts.HeartbeatEvery) {
			return answer, job.ErrNoAnswer
		}
		if !wait.For(ctx, answerPollInterval) {
			return answer, ctx.Err()
		}
	}
}
