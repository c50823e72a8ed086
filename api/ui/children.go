package ui

import (
	"fmt"
	"net/http"
	"strconv"

	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// childList holds one page of a fan-out's children.
type childList struct {
	*filters
	Of       job.Job
	Fan      *job.TreeFanOut // nil if the job has not fanned out
	Children []job.Job       // the last job of each child's chain
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
