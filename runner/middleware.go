package runner

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/work"
)

// Middleware is called instead of the handler of a job, with the claim, whatever the type of its arguments: for spans, logs and checks that
// hold for all kinds. next calls the handler, or the next of Options.Middleware. What it returns is taken as the handler's. The values of the
// context that it gives to next reach the handler, and also [Outcome.InTx] unless the pod's own context has them, as the span of the run.
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

// withValues returns an outcome whose writes see the values of a context as well as those of their own.
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

// valued is a context with the values of another one where it has none.
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

// EnqueueMiddleware is called around each submission, with its jobs: one of [Runner.Enqueue] or [Runner.EnqueueTx], or up to 2,000 of
// [Runner.EnqueueMany], which are one commit, or of [Runner.EnqueueManyTx]. Handlers that call them and clients of the HTTP API submit through
// it too.
//
// next submits the jobs with the context that it is given, or calls the next of Options.EnqueueMiddleware; it returns one [Submitted] a job,
// in the same order, or an error. The caller gets the return of the middleware: an error without a call of next refuses the submission. After
// EnqueueTx and EnqueueManyTx the jobs exist only if the caller commits.
//
// It is not called for jobs that follow from others and are part of their commits, by [Then] or [FanOut], nor for those of schedules.
type EnqueueMiddleware func(ctx context.Context, jobs []Submission, next func(context.Context) ([]Submitted, error)) ([]Submitted, error)
