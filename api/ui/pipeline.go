package ui

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// pipelinePage holds the data for a pipeline's page.
type pipelinePage struct {
	tree
	Drawing drawing
	Gantt   gantt
	Actions []action
}

// showPipeline shows the page of one pipeline.
func showPipeline(rd *reader, p *page, r *http.Request) error {
	id, err := text.ParseJobID(r.PathValue("id"))
	if err != nil {
		return err
	}
	t, err := rd.readTree(r.Context(), p.Principal, id)
	if err != nil {
		return err
	}
	owner := t.Jobs[0].Submitter // all jobs of a pipeline have the same submitter
	show := pipelinePage{tree: t, Drawing: draw(t, p.Now), Gantt: ganttOf(t, p.Now)}
	number := strconv.FormatInt(id, 10)
	if t.Status == job.PipelineRunning && p.CanFor(access.JobsCancel, owner) {
		show.Actions = append(show.Actions, action{"POST", "pipelines/" + number + "/abort", "Abort",
			"Every job of pipeline " + number + " that has not finished is cancelled, and no further step starts.", true})
	}
	if (t.Status == job.PipelineFailed || t.Status == job.PipelineCancelled) && p.CanFor(access.JobsRetry, owner) {
		show.Actions = append(show.Actions, action{"POST", "pipelines/" + number + "/retry", "Retry from here",
			"Pipeline " + number + " continues from the step where it ended. For a fan-out, only children that did not succeed run again.", false})
	}
	if t.Status == job.PipelinePartial && p.CanFor(access.JobsRetry, owner) {
		show.Actions = append(show.Actions, action{"POST", "pipelines/" + number + "/children/retry", "Retry failed children",
			"The failed children of pipeline " + number + " run again independently. The step after them does not run again, and the pipeline stays partial.", false})
	}
	p.Title, p.Data = short(60, cmp.Or(t.Name, t.Jobs[0].Kind))+" · Pipeline "+number, show
	p.Live, p.Still = "pipelines/"+number+"/stream", t.Status.Over() && !t.runsAgain()
	return nil
}

// runsAgain reports whether any child is unfinished. In a finished pipeline, an unfinished child means that the child was retried.
func (t tree) runsAgain() bool {
	for _, j := range t.Jobs {
		if j.FanOut == nil {
			continue
		}
		for state, n := range j.FanOut.States {
			if n > 0 && !state.Terminal() {
				return true
			}
		}
	}
	return false
}
