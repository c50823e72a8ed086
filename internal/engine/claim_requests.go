package engine

import (
	"context"
	"sync/atomic"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// MaxStackBytes is the maximum size of a stack that a pod returns.
const MaxStackBytes = 64 << 10

// answerRequests answers claim requests until ctx ends. It runs on a separate goroutine, because a heartbeat must not wait for stacks.
// Unanswered requests are redelivered by the next heartbeat.
func (e *Engine) answerRequests(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case list := <-e.asked:
			for _, asked := range list {
				if err := e.answer(ctx, asked); err != nil {
					e.Log.DebugContext(ctx, "could not answer an operator's request, retrying with the next heartbeat", telemetry.JobID, asked.JobID, telemetry.Err, e.DBError(err))
				}
			}
		}
	}
}

// answer answers a request. If the claim has not started yet, the request remains unanswered until a later heartbeat. So does a new
// priority if the next steps may already have been built with the old priority; once the run has ended, the operator's command changes
// those steps itself.
func (e *Engine) answer(ctx context.Context, asked store.ClaimRequest) error {
	run := e.Runs.Find(asked.JobID, asked.Fence)
	if run == nil {
		return nil
	}
	text := ""
	switch asked.What {
	case store.RequestPriority:
		if !run.niced.set(asked.Priority) {
			return nil
		}
	case store.RequestStack:
		if run.handler.Elsewhere {
			return nil
		}
		if text = StackOf(&run.goroutine); text == "" {
			return nil
		}
	default:
		return nil // a type of request that only later releases support
	}
	return store.AnswerRequest(ctx, e.Commands, asked.ID, text)
}

// StackOf returns the stack of the goroutine that is running a handler. The argument holds that goroutine's number, or 0 before the handler
// is called and after it returns. If the handler is not running, StackOf returns an empty string, because the goroutine may already be
// running another job.
func StackOf(handler *atomic.Uint64) string {
	goroutine := handler.Load()
	if goroutine == 0 {
		return ""
	}
	text := routine.StackOf(goroutine, MaxStackBytes)
	if handler.Load() != goroutine {
		return ""
	}
	return text
}
