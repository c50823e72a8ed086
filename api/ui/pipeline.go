package ui

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
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
		show.Actions = append(show.Actions, action{"POST", "pipelines/" + number + "/cancel", "Cancel pipeline",
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

// childList holds one page of a fan-out's children.
type childList struct {
	*filters
	Of       job.JobRow
	Fan      *job.TreeFanOut // nil if the job has not fanned out
	Children []job.JobRow    // the last job of each child's chain
	Next     string
	Later    bool
	State    job.State // empty means any state
}

// showChildren lists a job's fan-out children by position.
func showChildren(rd *reader, p *page, r *http.Request) error {
	id, err := text.ParseJobID(r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := rd.mustSee(r.Context(), p.Principal, id); err != nil {
		return err
	}
	number := strconv.FormatInt(id, 10)
	l := childList{filters: filtersOf(r, "jobs/"+number+"/children")}
	if l.State = job.State(l.Get("state")); l.State != "" && !l.State.Known() {
		return invalid(fmt.Errorf("unknown state %q: want one of %v", l.State, job.States()))
	}
	at, err := l.begins()
	if err != nil {
		return err
	}
	after := 0
	if l.Later = at != ""; l.Later {
		if after, err = strconv.Atoi(at); err != nil {
			return invalid(err)
		}
	}
	if l.Of, err = storeview.Job(r.Context(), rd.o.Store, id); err != nil {
		return err
	}
	if l.Fan, err = storeview.FanOutOf(r.Context(), rd.o.Store, id, 0); err != nil {
		return err
	}
	if l.Fan != nil {
		l.Children, err = storeview.BranchPage(r.Context(), rd.o.Store, l.Of.PipelineID, id, l.State, after, perPage)
	}
	if last := len(l.Children) - 1; last == perPage-1 && l.Children[last].ChildNo != nil {
		l.Next = l.From(strconv.Itoa(*l.Children[last].ChildNo))
	}
	p.Title, p.Data = short(60, l.Of.Kind)+" · Children of job "+number, l
	p.Live, p.Still = "pipelines/"+strconv.FormatInt(l.Of.PipelineID, 10)+"/stream", l.Later
	return err
}
