package engine

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// succeeded makes the ending of a handler that succeeded, and the row of the step that follows: the one it returned, or
// the next one of a chain that was declared. It returns an error when the step is refused.
func (fin *finisher) succeeded(one *Run, o *work.Outcome) (ending store.Ending, next *store.NewJob, err error) {
	ending = store.Ending{State: job.Succeeded, Outcome: o.Quality, Reason: job.ReasonOK, Result: o.Result}
	next, err = fin.nextStep(one, o)
	if err != nil || next == nil {
		return ending, nil, err
	}
	ids, err := fin.newIDs(one, 1)
	if err != nil {
		return ending, nil, err
	}
	next.ID = ids[0]
	return ending, next, nil
}

// nextStep is the row of the step that follows, without its id: nil when the pipeline ends here.
func (fin *finisher) nextStep(one *Run, o *work.Outcome) (*store.NewJob, error) {
	c := &one.Claimed
	planned, err := work.DecodePlan(c.ID, c.Planned)
	if err != nil {
		return nil, err
	}
	w := o.Next
	switch {
	case w != nil:
		if err := fin.intake.CheckFollowing("next step", w); err != nil {
			return nil, err
		}
		if w.UniqueKey != nil {
			return nil, fmt.Errorf("next step %s: keys are for submissions, not for steps: %w", w.Kind, job.ErrInvalid)
		}
		w.Planned = append(w.Planned, planned...)
	case len(planned) > 0:
		w = work.FromPlan(planned)
		w.MaxCrashes = fin.intake.crashLimit(w.Kind)
	default:
		return nil, nil
	}
	if c.Step+1 > job.MaxChainSteps {
		return nil, fmt.Errorf("next step %s: the pipeline has %d steps already: %w", w.Kind, c.Step+1, job.ErrTooLarge)
	}
	if w.Subject == nil {
		w.Subject = &c.Subject
	}
	if err := fin.checkLane(one, w.Kind, w.Lane); err != nil {
		return nil, fmt.Errorf("next step: %w", err)
	}
	if err := w.EncodePlan(); err != nil {
		return nil, err
	}
	n := fin.intake.follow(w, before{id: c.ID, pipeline: c.PipelineID, step: c.Step, lane: c.Lane, priority: c.Priority, submitter: c.Submitter})
	n.Branch, n.Trace = c.Branch, one.span.Traceparent(c.Trace)
	if c.Step == 0 && c.Planned == nil {
		n.Pipeline = new(string) // from its second step on it is one that is listed
	}
	return &n, nil
}

// CheckFollowing checks a next step or a child. The keys, the name and the submitter are those of its pipeline.
func (sub *submitter) CheckFollowing(what string, w *work.Submission) error {
	if err := sub.CheckSubmission(w); err != nil {
		return err
	}
	switch {
	case w.IdempotencyKey != "" || w.Pipeline != "":
		return fmt.Errorf("%s %s: idempotency keys are for submissions, and names of pipelines, not for what follows: %w", what, w.Kind, job.ErrInvalid)
	case w.Approval:
		return fmt.Errorf("%s %s: approval is for submissions, not for what follows: %w", what, w.Kind, job.ErrInvalid)
	case w.Submitter != "":
		return fmt.Errorf("%s %s: it has the submitter of its pipeline: %w", what, w.Kind, job.ErrInvalid)
	}
	return nil
}

// before is the job that a step follows, and what the step has of it unless it says otherwise.
type before struct {
	id, pipeline int64
	step         int
	lane         string
	priority     int
	submitter    string
}

// follow makes the row of a step, without its id and branch. What the step does not say is as before, the subject apart.
func (sub *submitter) follow(w *work.Submission, from before) store.NewJob {
	if w.Priority == nil {
		w.Priority = &from.priority
	}
	w.Submitter = from.submitter // who may see a pipeline may see all of it
	n := w.Row(0, sub.Lanes.LaneOfStep(w.Kind, w.Lane, from.lane))
	n.Actor = "handler"
	n.PipelineID, n.ParentID, n.Step = from.pipeline, &from.id, from.step+1
	return n
}

// checkLane checks that the lane exists that a step names.
func (fin *finisher) checkLane(one *Run, kind, lane string) error {
	if lane == "" {
		return nil
	}
	return fin.persist(one, func(ctx context.Context) error {
		_, err := fin.intake.laneOf(ctx, kind, lane)
		return err
	})
}

// newIDs reserves ids for a claim's next steps, as long as the claim is ours.
func (fin *finisher) newIDs(one *Run, n int) (ids []int64, err error) {
	err = fin.persist(one, func(ctx context.Context) (err error) {
		ids, err = fin.Store.NewIDs(ctx, n)
		return err
	})
	return ids, err
}

// mayStart decides whether the next step may start on insert here, and prepares its lane. The database adds what only it
// knows: whether something more urgent waits, and whether the subject is free.
func (i *Identity) mayStart(one *Run, next *store.NewJob) bool {
	return next.DelayMillis == 0 && !i.Closing.Load() && i.Handled[next.Kind] && i.Lease.Trusted() &&
		i.Lease.id() == one.Lease.Pod && i.Lanes.Step(one.Claimed.Lane, next.Lane)
}

// reserveFor reserves a slot for a job that is about to be inserted, if it may start on insert here, and returns the boot id that it is for.
func (i *Identity) reserveFor(kind, lane string, delayMillis int64) (boot string, reserved bool) {
	boot = i.Lease.id()
	// Trust first: Handled is fixed before the first heartbeat.
	if delayMillis > 0 || i.Closing.Load() || !i.Lease.Trusted() || !i.Handled[kind] {
		return boot, false
	}
	return boot, i.Lanes.Reserve(lane)
}
