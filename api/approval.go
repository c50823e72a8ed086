package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// An approval is asked for by lanes, of what is submitted to them. Who submits names lanes and later steps himself, so here they are all
// looked at: neither another lane, nor an earlier step, nor a retry leads around a person's yes. The test is
// TestNoLaneAndNoChainLeadsAroundAnApproval.

// asksApproval reports whether a submission needs approval for more than the lane that it goes to, at which the store itself looks.
func (s *server) asksApproval(ctx context.Context, body Submission) (bool, error) {
	if body.Lane == "" && len(body.Chain) == 0 {
		return false, nil
	}
	lanes, kinds := []string{}, []string{body.Kind}
	if body.Lane != "" {
		lanes = append(lanes, body.Lane)
	}
	for _, step := range body.Chain {
		if kinds = append(kinds, step.Kind); step.Lane != "" {
			lanes = append(lanes, step.Lane)
		}
	}
	return s.r.Store().AsksApproval(ctx, lanes, kinds)
}

// mayChange refuses other arguments for a later step of a pipeline that a person approved as it was, unless the caller may approve it
// himself. That the first job needed approval is how its history begins, which never changes; where that is no longer kept, it is as the
// lanes are now.
func (s *server) mayChange(c echo.Context, id int64) error {
	ctx, to := c.Request().Context(), caller(c)
	step, err := s.r.Get(ctx, id)
	if err != nil || step.PipelineID == id || to.Sees(access.JobsApprove, step.Submitter) {
		return err
	}
	first, err := s.r.Get(ctx, step.PipelineID)
	if errors.Is(err, job.ErrNotFound) { // its retention is over
		return nil
	}
	if err != nil {
		return err
	}
	history, err := s.r.Store().JobEvents(ctx, first.ID, 0, 1)
	if err != nil {
		return err
	}
	if len(history) > 0 && *history[0].EventNo == 1 {
		if history[0].To != job.AwaitingApproval {
			return nil
		}
	} else if asks, err := s.r.Store().AsksApproval(ctx, []string{first.Lane}, []string{first.Kind}); err != nil || !asks {
		return err
	}
	return &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this", refused: true,
		detail: "its pipeline was approved with other arguments: to change them needs the permission " + string(access.JobsApprove)}
}
