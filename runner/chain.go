package runner

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// succeeded makes the ending of a handler that succeeded, and the row of the step that follows: the one it returned, or
// the next one of a chain that was declared. An error says why that cannot be; a panic of the user's types, which are
// encoded here, is one.
func (r *engine) succeeded(one *run, o *Outcome) (ending store.Ending, next *store.NewJob, err error) {
	defer guard.Recover(&err)
	ending = store.Ending{State: job.Succeeded, Outcome: o.quality, Reason: job.ReasonOK}
	if ending.Result, err = o.encodeResult(); err != nil {
		return ending, nil, err
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

// encodeResult encodes the result of a job: nil when it has none.
func (o *Outcome) encodeResult() (json.RawMessage, error) {
	if o.result == nil {
		return nil, nil
	}
	result, err := encode(o.result, job.MaxResultBytes)
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return result, nil
}

// nextStep is the row of the step that follows, without its id: nil when the pipeline ends here.
func (r *engine) nextStep(one *run, o *Outcome) (*store.NewJob, error) {
	c := one.Claimed
	planned, err := decodePlan(c.ID, c.Planned)
	if err != nil {
		return nil, err
	}
	var w *submission
	switch {
	case o.next != nil:
		if w, err = r.newSubmission(o.next, o.options); err != nil {
			return nil, err
		}
		if w.uniqueKey != nil || w.idempotencyKey != "" || w.pipeline != "" {
			return nil, fmt.Errorf("next step %s: keys are for submissions, and names of pipelines, not for steps: %w", w.kind, job.ErrInvalid)
		}
		if w.approval {
			return nil, fmt.Errorf("next step %s: approval is for submissions, not for steps: %w", w.kind, job.ErrInvalid)
		}
		if w.submitter != "" {
			return nil, fmt.Errorf("next step %s: it has the submitter of its pipeline: %w", w.kind, job.ErrInvalid)
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
	if err := r.checkLane(one, w); err != nil {
		return nil, fmt.Errorf("next step: %w", err)
	}
	if err := w.encodePlan(); err != nil {
		return nil, err
	}
	n := r.follow(w, before{id: c.ID, pipeline: c.PipelineID, step: c.Step, lane: c.Lane, priority: c.Priority, submitter: c.Submitter})
	n.Branch, n.Trace = c.Branch, one.traceparent()
	if c.Step == 0 && c.Planned == nil {
		n.Pipeline = new(string) // from its second step on it is one that is listed
	}
	return &n, nil
}

// decodePlan decodes the steps that are planned after a job.
func decodePlan(id int64, plan json.RawMessage) (steps []job.Step, err error) {
	if plan == nil {
		return nil, nil
	}
	if err := json.Unmarshal(plan, &steps); err != nil {
		return nil, fmt.Errorf("decode the planned steps of job %d: %w", id, err)
	}
	return steps, nil
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
func (r *engine) follow(w *submission, from before) store.NewJob {
	if w.priority == nil {
		w.priority = &from.priority
	}
	w.submitter = from.submitter // who may see a pipeline may see all of it
	n := w.row(0, r.lanes.LaneOfStep(w.kind, w.lane, from.lane))
	n.Actor = "handler"
	n.PipelineID, n.ParentID, n.Step = from.pipeline, &from.id, from.step+1
	return n
}

// checkLane checks that the lane exists that a step names.
func (r *engine) checkLane(one *run, w *submission) error {
	if w.lane == "" {
		return nil
	}
	return r.persist(one, func(ctx context.Context) error {
		_, err := r.laneOf(ctx, w.kind, w.lane)
		return err
	})
}

// newIDs reserves ids for a claim's next steps, as long as the claim is ours.
func (r *engine) newIDs(one *run, n int) (ids []int64, err error) {
	err = r.persist(one, func(ctx context.Context) (err error) {
		ids, err = r.store.NewIDs(ctx, n)
		return err
	})
	return ids, err
}

// mayStart decides whether the next step may be born running here, and prepares its lane. The database adds what only it
// knows: whether something more urgent waits, and whether the subject is free.
func (r *engine) mayStart(one *run, next *store.NewJob) bool {
	return next.DelayMillis == 0 && !r.closing.Load() && r.mine[next.Kind] && r.pod.trusted() &&
		r.pod.id() == one.Lease.Pod && r.lanes.Step(one.Claimed.Lane, next.Lane)
}
