package api

import (
	"context"
	"net/http"
	"slices"

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

// mayRetry refuses to try again what nobody has approved that needed it, or what was approved with other arguments, unless the caller
// may approve it himself. What it looks at never changes back, so nothing can happen between this and the retry.
func (s *server) mayRetry(c echo.Context, id int64, otherArgs bool) error {
	ctx, to := c.Request().Context(), caller(c)
	first, err := s.r.Get(ctx, id)
	if err == nil && first.PipelineID != id {
		first, err = s.r.Get(ctx, first.PipelineID) // it was approved for all of its pipeline
	}
	if err != nil || to.Sees(access.JobsApprove, first.Submitter) {
		return err
	}
	history, err := s.r.Store().JobEvents(ctx, first.ID, 0, 100)
	if err != nil {
		return err
	}
	if len(history) > 0 && *history[0].EventNo == 1 {
		if history[0].To != job.AwaitingApproval {
			return nil
		}
	} else if asks, err := s.r.Store().AsksApproval(ctx, []string{first.Lane}, []string{first.Kind}); err != nil || !asks {
		return err // its beginning is no longer kept: as it would be today
	}
	approved := first.Fence > 0 || slices.ContainsFunc(history, func(e job.Event) bool { return e.Event == "job.approved" })
	if approved && !otherArgs {
		return nil
	}
	why := "nobody has approved it"
	if approved {
		why = "it was approved with other arguments"
	}
	return mustApprove(why)
}

// mayRetryMany refuses to try many jobs again that were cancelled, which nobody may have approved; those that failed have run.
func mayRetryMany(to access.Principal, states []job.State) error {
	if all, own := to.Can(access.JobsApprove); all && !own || !slices.Contains(states, job.Cancelled) {
		return nil
	}
	return mustApprove("some of what was cancelled may never have been approved")
}

func mustApprove(why string) error {
	return &problem{status: http.StatusForbidden, code: "forbidden", message: "you may not do this",
		detail: why + ": it needs the permission " + string(access.JobsApprove), refused: true}
}
