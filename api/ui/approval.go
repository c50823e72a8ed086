package ui

import (
	"bytes"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// approval holds the buttons for a job that awaits approval. The buttons open a dialog that shows the job's details and arguments.
type approval struct {
	ID      int64
	Epoch   int  // the buttons apply only to this epoch, because another one may have different arguments
	Alone   bool // the job is the only one on the page
	Approve bool
	Reject  bool
	Own     bool // the visitor has the permission but submitted the job, so another person must approve it
}

// Approval returns the buttons that the visitor may use for a job that awaits approval. If second is set, a lane requires approval by
// another person.
func (p *page) Approval(id int64, epoch int, submitter string, second bool) *approval {
	may := p.CanFor(access.JobsApprove, submitter)
	own := may && (p.FourEyes || second) && submitter == p.Name
	return &approval{ID: id, Epoch: epoch, Approve: may && !own, Reject: may && p.CanFor(access.JobsCancel, submitter), Own: own}
}

// hides reports whether any values in a job's arguments are hidden from the visitor.
func (v visitor) hides(j job.Job) bool {
	return !v.CanFor(access.JobsArgs, j.Submitter) && bytes.Contains(j.Args, []byte(access.Masked))
}
