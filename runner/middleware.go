package runner

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/work"
)

// Middleware wraps the handler of every kind, for tracing, logging or checks. next calls the handler, or the next element of
// Options.Middleware. The runner uses the middleware's return values instead of the handler's. Values in the context passed to next are
// visible to the handler. They are also visible in [Outcome.InTx], unless the pod's context already has a value for the key, such as the
// run's span.
type Middleware func(ctx context.Context, j *Job[Raw], next func(context.Context) (*Outcome, error)) (*Outcome, error)

// through wraps a handler in middleware, with the first element outermost.
func through(list []Middleware, kind string, handler func(context.Context, *work.Job) (*Outcome, error)) func(context.Context, *work.Job) (*Outcome, error) {
	if len(list) == 0 {
		return handler
	}
	return func(ctx context.Context, j *work.Job) (*Outcome, error) {
		call := func(ctx context.Context) (*Outcome, error) {
			o, err := handler(ctx, j)
			return o.withValues(ctx), err
		}
		for i := len(list) - 1; i >= 0; i-- {
			middleware, next := list[i], call
			call = func(ctx context.Context) (*Outcome, error) { return middleware(ctx, rawJob(kind, j), next) }
		}
		return call(ctx)
	}
}

// withValues returns an outcome whose InTx functions can also read the values in from.
func (o *Outcome) withValues(from context.Context) *Outcome {
	if o == nil || len(o.writes) == 0 {
		return o
	}
	with := *o // copied, because a handler may return the same outcome again
	with.writes = slices.Clone(o.writes)
	for i, w := range o.writes {
		if w.Do != nil {
			with.writes[i].Do = func(ctx context.Context, tx pgx.Tx) error { return w.Do(valued{ctx, from}, tx) }
		}
	}
	return &with
}

// valued is a context that falls back to another context's values.
type valued struct {
	context.Context
	from context.Context
}

func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.from.Value(key)
}

// EnqueueMiddleware wraps each submission. A submission is one job passed to [Runner.Enqueue] or [Runner.EnqueueTx], or a batch of up to
// 2,000 jobs passed to [Runner.EnqueueMany] or [Runner.EnqueueManyTx]. EnqueueMany commits each batch separately. The middleware is also
// called for submissions from handlers and HTTP API clients.
//
// next submits the jobs with the context passed to it, or calls the next element of Options.EnqueueMiddleware. It returns one [Submitted]
// per job, in the same order, or an error. The caller receives the middleware's return values. Returning an error without calling next
// rejects the submission. After EnqueueTx and EnqueueManyTx, the jobs exist only if the caller commits.
//
// The middleware is not called for jobs started by a handler's outcome, such as [Then] or [FanOut], or by a schedule.
type EnqueueMiddleware func(ctx context.Context, jobs []Submission, next func(context.Context) ([]Submitted, error)) ([]Submitted, error)
