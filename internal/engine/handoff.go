package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// succeeded builds the outcome of a successful run and the next step's row. That is the step returned by the handler or, if there is none,
// the next step of the declared chain. If the step is invalid, succeeded returns a permanent error.
func (x *executor) succeeded(run *Run, o *work.Outcome) (ending store.Ending, next *store.NewJob, err error) {
	ending = store.Ending{State: job.Succeeded, Outcome: o.Status, Reason: job.ReasonOK, Result: o.Result}
	next, err = x.nextStep(run, o)
	if err != nil || next == nil {
		return ending, nil, job.Permanent(err)
	}
	ids, err := x.newIDs(run, 1)
	if err != nil {
		return ending, nil, job.Permanent(err)
	}
	next.ID = ids[0]
	return ending, next, nil
}

// nextStep builds the next step's row, without its id. It returns nil if there is no next step.
func (x *executor) nextStep(run *Run, o *work.Outcome) (*store.NewJob, error) {
	c := run.Claimed
	planned, err := run.plannedSteps()
	if err != nil {
		return nil, err
	}
	chain, undo := planned.FollowedBy(o)
	w := o.Next
	switch {
	case w != nil:
		if err := x.intake.CheckFollowing("next step", w); err != nil {
			return nil, err
		}
		if w.UniqueKey != nil {
			return nil, fmt.Errorf("%w: next step %s: keys are allowed only on submissions", job.ErrInvalid, w.Kind)
		}
		w.Planned = slices.Concat(w.Planned, chain, undo)
	case len(chain) > 0:
		w = work.FromPlan(slices.Concat(chain, undo))
		w.MaxCrashes = x.intake.crashLimit(w.Kind)
	default:
		return nil, nil
	}
	if c.Step+1 > job.MaxChainSteps {
		return nil, fmt.Errorf("%w: next step %s: the pipeline has %d steps already", job.ErrTooLarge, w.Kind, c.Step+1)
	}
	if w.Subject == nil {
		w.Subject = &c.Subject
	}
	if err := x.checkLane(run, w); err != nil {
		return nil, fmt.Errorf("next step: %w", err)
	}
	if err := w.EncodePlan(); err != nil {
		return nil, err
	}
	n := x.intake.follow(w, predecessor{id: c.ID, pipeline: c.PipelineID, step: c.Step, lane: c.Lane, priority: run.nextPriority(), submitter: c.Submitter, key: c.Key, ordered: c.Ordered})
	n.Branch, n.Trace = c.Branch, run.span.Traceparent(c.Trace)
	if c.Step == 0 && len(planned.Chain) == 0 {
		n.Pipeline = new(string) // pipelines are listed from the second step on
	}
	return &n, nil
}

// checkLane returns an error if a step names a lane that does not exist, and delays a step whose lane is still to be made.
func (x *executor) checkLane(run *Run, w *work.Submission) error {
	if w.Lane == "" {
		return nil
	}
	return x.persist(run, func(ctx context.Context) error {
		_, err := x.intake.LaneAsking(ctx, nil, w)
		return err
	}, nil)
}

// newIDs reserves ids for a run's next steps. It retries as long as this pod holds the claim.
func (x *executor) newIDs(run *Run, n int) (ids []int64, err error) {
	err = x.persist(run, func(ctx context.Context) (err error) {
		ids, err = x.Store.NewIDs(ctx, n)
		return err
	}, nil)
	return ids, err
}

// withFreeIDs calls write again with other ids for a run's next steps as long as one of their ids is in use. err is the error of the first
// attempt. It asks for ids as long as this pod holds the claim.
func (x *executor) withFreeIDs(run *Run, err error, next []*store.NewJob, write func() error) error {
	for try := 0; x.Store.IDTaken(err) && try < idTries; try++ {
		err = x.persist(run, func(ctx context.Context) error { return x.intake.renumber(ctx, nil, next...) }, nil)
		if err == nil {
			err = write()
		}
	}
	return err
}
