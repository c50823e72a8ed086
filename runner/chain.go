package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// succeeded makes the ending of a handler that succeeded, and the row of the step that follows: the one it returned, or
// the next one of a chain that was declared. An error says why that cannot be; a panic of the user's types, which are
// encoded here, is one.
func (r *Runner) succeeded(one *run, o *Outcome) (ending store.Ending, next *store.NewJob, err error) {
	defer func() {
		if p := recover(); p != nil {
			ending, next, err = store.Ending{}, nil, fmt.Errorf("panic in what the handler returned: %v\n%s", p, debug.Stack())
		}
	}()
	ending = store.Ending{State: job.Succeeded, Outcome: o.quality, Reason: job.ReasonOK}
	if o.result != nil {
		result, err := encode(o.result, job.MaxResultBytes)
		if err != nil {
			return ending, nil, fmt.Errorf("encode the result: %w", err)
		}
		ending.Result = result
	}
	next, err = r.nextStep(one, o)
	if err != nil || next == nil {
		return ending, nil, err
	}
	ids, err := r.newIDs(one, 1)
	if err != nil {
		return ending, nil, err
	}
	next.ID = ids[0]
	return ending, next, nil
}

// nextStep is the row of the step that follows, without its id: nil when the pipeline ends here.
func (r *Runner) nextStep(one *run, o *Outcome) (*store.NewJob, error) {
	c := one.claimed
	var planned []job.Step
	if c.Planned != nil {
		if err := json.Unmarshal(c.Planned, &planned); err != nil {
			return nil, fmt.Errorf("decode the planned steps of job %d: %w", c.ID, err)
		}
	}
	var w *submission
	switch {
	case o.next != nil:
		var err error
		if w, err = r.newSubmission(o.next, o.options); err != nil {
			return nil, err
		}
		if w.uniqueKey != nil || w.idempotencyKey != "" {
			return nil, fmt.Errorf("next step %s: keys are for submissions, not for steps: %w", w.kind, job.ErrInvalid)
		}
		if w.approval {
			return nil, fmt.Errorf("next step %s: approval is for submissions, not for steps: %w", w.kind, job.ErrInvalid)
		}
		w.planned = append(w.planned, planned...)
	case len(planned) > 0:
		s := planned[0]
		w = &submission{kind: s.Kind, args: s.Args, lane: s.Lane, subject: s.Subject, priority: s.Priority, planned: planned[1:],
			maxCrashes: r.crashLimit(s.Kind)}
	default:
		return nil, nil
	}
	if c.Step+1 > job.MaxChainSteps {
		return nil, fmt.Errorf("next step %s: the pipeline has %d steps already: %w", w.kind, c.Step+1, job.ErrTooLarge)
	}
	if w.subject == nil {
		w.subject = &c.Subject
	}
	if w.priority == nil {
		w.priority = &c.Priority
	}
	if w.submitter == "" {
		w.submitter = c.Submitter
	}
	if w.lane != "" {
		err := r.persist(one, func(ctx context.Context) error {
			_, err := r.laneOf(ctx, w.kind, w.lane)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("next step: %w", err)
		}
	}
	if err := w.encodePlan(); err != nil {
		return nil, err
	}
	n := w.row(0, r.lanes.laneOfStep(w.kind, w.lane, c.Lane))
	n.Actor = "handler"
	n.PipelineID, n.ParentID, n.Step = c.PipelineID, &c.ID, c.Step+1
	return &n, nil
}

// newIDs reserves ids for a claim's next steps, as long as the claim is ours.
func (r *Runner) newIDs(one *run, n int) (ids []int64, err error) {
	err = r.persist(one, func(ctx context.Context) (err error) {
		ids, err = r.store.NewIDs(ctx, n)
		return err
	})
	return ids, err
}

// mayStart decides whether the next step may be born running here, and prepares its lane. The database adds what only it
// knows: whether something more urgent waits, and whether the subject is free.
func (r *Runner) mayStart(one *run, next *store.NewJob) bool {
	return next.DelayMillis == 0 && !r.closing.Load() && r.mine[next.Kind] && r.pod.trusted() &&
		r.pod.id() == one.lease.Pod && r.lanes.step(one.claimed.Lane, next.Lane)
}
