package engine

import (
	"context"
	"iter"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// branchPage is how many branches are read at once.
const branchPage = 500

// branches reads the ends of the branches of a job that fanned out, page by page.
func (r *Engine) Branches(ctx context.Context, id int64) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) {
		w, err := r.Commands.Waiting(ctx, id)
		if err != nil {
			yield(job.Branch{}, err)
			return
		}
		after, part := 0, ""
		for parts := false; ; {
			var page []view.BranchEnd
			var err error
			if parts {
				page, err = admin.Parts(ctx, r.Commands, id, part, branchPage)
			} else {
				page, err = view.Branches(ctx, r.Commands, w.PipelineID, id, after, branchPage)
			}
			if err != nil {
				yield(job.Branch{}, r.DBError(err))
				return
			}
			for _, b := range page {
				if !yield(branchOf(b), nil) {
					return
				}
				after, part = b.No, b.Part
			}
			switch {
			case len(page) == branchPage:
			case parts:
				return
			default:
				parts = true
			}
		}
	}
}

func branchOf(b view.BranchEnd) job.Branch {
	one := job.Branch{No: b.No, JobID: b.ID, Kind: b.Kind, Subject: b.Subject, Part: b.Part, State: b.State, JSON: b.Result}
	if b.Outcome != nil {
		one.Outcome = *b.Outcome
	}
	if b.Reason != nil {
		one.Reason = *b.Reason
	}
	if b.Error != nil {
		one.Error = *b.Error
	}
	return one
}
