package ui

import (
	"net/http"
	"strconv"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// pipelinePage is the content of a pipeline's page.
type pipelinePage struct {
	tree
	Drawing drawing
	Actions []action
}

// pipeline shows the page of one pipeline.
func (d *dashboard) pipeline(p *page, r *http.Request) error {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		return err
	}
	t, err := d.readTree(r.Context(), p.Principal, id)
	if err != nil {
		return err
	}
	owner := t.Jobs[0].Submitter // all jobs of a pipeline have the same submitter
	show := pipelinePage{tree: t, Drawing: draw(t, p.Now)}
	number := strconv.FormatInt(id, 10)
	if t.Status == job.PipelineRunning && p.Sees(access.JobsCancel, owner) {
		show.Actions = append(show.Actions, action{"POST", "pipelines/" + number + "/abort", "Abort",
			"Every job of pipeline " + number + " that has not finished is cancelled, and no further step starts.", true})
	}
	if (t.Status == job.PipelineFailed || t.Status == job.PipelineCancelled) && p.Sees(access.JobsRetry, owner) {
		show.Actions = append(show.Actions, action{"POST", "pipelines/" + number + "/retry", "Retry from here",
			"Pipeline " + number + " continues from the step where it ended. For a fan-out, only children that did not succeed run again.", false})
	}
	p.Title, p.Data = "Pipeline "+number, show
	p.Live, p.Still = "pipelines/"+number+"/stream", t.Status.Over()
	return nil
}

// Earlier returns the number of earlier steps that the drawing leaves out.
func (t tree) Earlier() int { return max(len(t.Jobs)-mostSteps, 0) }

// Latest returns the steps that are drawn.
func (t tree) Latest() []job.TreeJob { return t.Jobs[t.Earlier():] }
