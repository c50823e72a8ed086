package engine

import (
	"context"
	"sync"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/internal/work"
)

// MaxStackBytes limits the stack that a pod returns.
const MaxStackBytes = 64 << 10

// requests holds the requests for claims that the latest heartbeat delivered.
type requests struct {
	some wait.Signal
	mu   sync.Mutex
	list []store.ClaimRequest
}

func (r *requests) set(list []store.ClaimRequest) {
	if len(list) == 0 {
		return
	}
	r.mu.Lock()
	r.list = list
	r.mu.Unlock()
	r.some.Set()
}

func (r *requests) take() []store.ClaimRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list
}

// answerRequests answers the requests for claims until ctx ends. It runs on a separate goroutine, because a heartbeat must not wait for
// stacks. A request that is not answered comes again with the next heartbeat.
func (e *Engine) answerRequests(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.asked.some:
		}
		for _, r := range e.asked.take() {
			if err := e.answer(ctx, r); err != nil {
				e.Log.DebugContext(ctx, "could not answer an operator's request, retrying with the next heartbeat", telemetry.JobID, r.JobID, telemetry.Err, e.DBError(err))
			}
		}
	}
}

// answer answers a request. It leaves a request for a claim that has not started yet to the next heartbeat.
func (e *Engine) answer(ctx context.Context, r store.ClaimRequest) error {
	one := e.Runs.Find(r.JobID, r.Fence)
	if one == nil {
		return nil
	}
	text := ""
	switch r.What {
	case store.RequestPriority:
		one.niced.Store(r.Priority)
	case store.RequestStack:
		if text = one.stack(); text == "" {
			return nil
		}
	default:
		return nil // a later release may know this request
	}
	return store.AnswerRequest(ctx, e.Commands, r.ID, text)
}

// stack returns the stack of the goroutine that is running the handler. It returns an empty string if the handler has not been called yet
// or has returned: the goroutine may then be running another job.
func (one *Run) stack() string {
	goroutine := one.goroutine.Load()
	if goroutine == 0 {
		return ""
	}
	text := guard.StackOf(goroutine, MaxStackBytes)
	if one.goroutine.Load() != goroutine {
		return ""
	}
	return text
}

// nextPriority returns the priority of next steps that set none.
func (one *Run) nextPriority() int {
	if p := one.niced.Load(); p != nil {
		return *p
	}
	return one.Claimed.Priority
}

// plan decodes the steps planned after the job. If an operator gave the chain another priority during the run, all steps have it.
func (one *Run) plan() (work.Plan, error) {
	plan, err := work.DecodePlan(one.Claimed.ID, one.Claimed.Planned)
	if p := one.niced.Load(); p != nil {
		plan.SetPriority(p)
	}
	return plan, err
}
