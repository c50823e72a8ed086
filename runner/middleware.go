package runner

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/work"
)

// Middleware is called around the handler of every kind, for spans, logs and checks. next calls the handler, or the next of
// Options.Middleware. The runner uses Middleware's return in place of the handler's. The values of the context passed to next reach the
// handler. They also reach [Outcome.InTx], unless the pod's context already has a value for the key, such as the span of the run.
type Middleware func(ctx context.Context, j *Job[Raw], next func(context.Context) (*Outcome, error)) (*Outcome, error)

// through returns a handler that is called through middleware, the first outermost.
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
			one, next := list[i], call
			call = func(ctx context.Context) (*Outcome, error) { return one(ctx, rawJob(kind, j), next) }
		}
		return call(ctx)
	}
}

// withValues returns an outcome whose InTx functions also see the values of from.
func (o *Outcome) withValues(from context.Context) *Outcome {
	if o == nil || len(o.writes) == 0 {
		return o
	}
	with := *o // a handler may return the same outcome again
	with.writes = slices.Clone(o.writes)
	for i, w := range o.writes {
		if w.Do != nil {
			with.writes[i].Do = func(ctx context.Context, tx pgx.Tx) error { return w.Do(valued{ctx, from}, tx) }
		}
	}
	return &with
}

// valued is a context that falls back to the values of another context.
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

// EnqueueMiddleware is called around each submission: one job of [Runner.Enqueue] or [Runner.EnqueueTx], or up to 2,000 jobs of
// [Runner.EnqueueMany], which are one commit, or of [Runner.EnqueueManyTx]. It also sees the submissions of handlers and of clients of the
// HTTP API.
//
// next submits the jobs with the context that it is given, or calls the next of Options.EnqueueMiddleware. It returns one [Submitted] per
// job, in the same order, or an error. The caller gets the return of the middleware: an error without a call of next rejects the
// submission. After EnqueueTx and EnqueueManyTx the jobs exist only if the caller commits.
//
// It is not called for jobs that follow from others in the same commit, by [Then] or [FanOut], nor for those of schedules.
type EnqueueMiddleware func(ctx context.Context, jobs []Submission, next func(context.Context) ([]Submitted, error)) ([]Submitted, error)
