package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/interpreter"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// reader reads through a run's workflow, for a process without a connection to PostgreSQL. It implements only the read methods of
// [work.Writer].
type reader struct {
	work.Writer
	client        client.Client
	workflow, run string
}

// Remote returns a [work.Writer] that reads through a run's workflow.
func Remote(c client.Client, workflow, run string) work.Writer {
	return &reader{client: c, workflow: workflow, run: run}
}

// read repeats the request until the workflow replies or ctx is cancelled.
func (r *reader) read(ctx context.Context, what wire.Read) (a wire.Answer, err error) {
	for backoff := routine.NewBackoff(); ; {
		var handle client.WorkflowUpdateHandle
		handle, err = r.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{WorkflowID: r.workflow, RunID: r.run, UpdateName: interpreter.Read,
			Args: []any{what}, WaitForStage: client.WorkflowUpdateStageCompleted})
		if err == nil {
			err = handle.Get(ctx, &a)
		}
		_, over := errors.AsType[*serviceerror.NotFound](err)
		refused, _ := errors.AsType[*temporal.ApplicationError](err)
		switch {
		case refused != nil && refused.Type() == interpreter.TooMuch:
			return a, job.Permanent(fmt.Errorf("%w: %s", job.ErrTooLarge, refused.Message()))
		case err == nil && a.NotFound:
			return a, fmt.Errorf("%w: %s", job.ErrNotFound, a.Error)
		case over:
			return a, job.ErrLeaseLost
		case err == nil || ctx.Err() != nil:
			return a, err
		}
		if !backoff.Wait(ctx) {
			return a, err
		}
	}
}

// PreviousResult implements [work.Writer].
func (r *reader) PreviousResult(ctx context.Context) (json.RawMessage, error) {
	a, err := r.read(ctx, wire.Read{What: wire.ParentResult})
	return a.Value, err
}

// Failure implements [work.Writer].
func (r *reader) Failure(ctx context.Context) (f job.Failure, err error) {
	a, err := r.read(ctx, wire.Read{What: wire.OwnFailure})
	if err == nil {
		err = json.Unmarshal(a.Value, &f)
	}
	return f, err
}

// CompletionToken implements [work.Writer].
func (r *reader) CompletionToken(ctx context.Context) (token string, err error) {
	a, err := r.read(ctx, wire.Read{What: wire.Token})
	if err == nil {
		err = json.Unmarshal(a.Value, &token)
	}
	return token, err
}

// Branches implements [work.Writer].
func (r *reader) Branches(ctx context.Context) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) {
		for n := 0; ; {
			a, err := r.read(ctx, wire.Read{What: wire.Branches, After: n})
			if err != nil {
				yield(job.Branch{}, err)
				return
			}
			for _, b := range a.Branches {
				if string(b.JSON) == "null" {
					b.JSON = nil // the branch has no result
				}
				if n++; !yield(b, nil) {
					return
				}
			}
			if !a.More {
				return
			}
		}
	}
}
