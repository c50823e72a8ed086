package engine

import (
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

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

// predecessor is the job that a step follows, and what the step has of it unless it says otherwise.
type predecessor struct {
	id, pipeline int64
	step         int
	lane         string
	priority     int
	submitter    string
}

// follow makes the row of a step, without its id and branch. What the step does not say is as before, the subject apart.
func (sub *submitter) follow(w *work.Submission, from predecessor) store.NewJob {
	if w.Priority == nil {
		w.Priority = &from.priority
	}
	w.Submitter = from.submitter // who may see a pipeline may see all of it
	n := w.Row(0, sub.Lanes.LaneOfStep(w.Kind, w.Lane, from.lane))
	n.Actor = "handler"
	n.PipelineID, n.ParentID, n.Step = from.pipeline, &from.id, from.step+1
	return n
}
