package ui

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// jobList holds one page of the job list.
type jobList struct {
	*filters
	Jobs    []job.Job
	Next    string     // the URL of the next page, or empty if there is none
	Later   bool       // not the first page
	Until   *time.Time // if the search stopped early, the time that it reached; otherwise nil
	States  []job.State
	Lanes   []string
	Reasons []job.Reason
	Classes []job.ErrorClass
	Many    []many
}

// showJobs lists jobs, newest first.
func showJobs(rd *reader, p *page, r *http.Request) error {
	l := jobList{filters: filtersOf(r, "jobs"), States: job.States(), Reasons: job.Reasons(), Classes: job.ErrorClasses(), Later: r.URL.Query().Get("cursor") != ""}
	filter, err := jobFilter(l.filters, p.Now)
	if err != nil {
		return err
	}
	filter.Owner = p.Owner(access.JobsRead)
	found, err := rd.search(p, r, l.Get("search"), filter)
	if err != nil {
		return err
	}
	l.Jobs, l.Next, l.Many = found.Jobs, l.From(found.Cursor), p.manyOf(l.filters)
	if !found.Searched.IsZero() {
		l.Until = &found.Searched
	}
	lanes, err := storeview.LanesUpTo(r.Context(), rd.o.Store, 0)
	for _, laneUse := range lanes {
		l.Lanes = append(l.Lanes, laneUse.Name)
	}
	p.Title, p.Data = "Jobs", l
	if p.Still = l.Later; !l.Later { // do not refresh a later page while the visitor reads it
		p.Live = "events/stream"
	}
	return err
}

// search lists the jobs that match a filter and the text in the search field.
func (rd *reader) search(p *page, r *http.Request, text string, f job.Filter) (storeview.Page, error) {
	search, err := storeview.ParseSearch(text)
	if err != nil {
		return storeview.Page{}, invalid(err)
	}
	search, f, err = search.For(f, p.May(string(access.JobsArgs)), p.Owner(access.JobsArgs))
	if err != nil {
		return storeview.Page{}, fmt.Errorf("%w: %w", errForbidden, err)
	}
	if err := rd.o.Searched(r, p.Principal, search); err != nil {
		return storeview.Page{}, err
	}
	return storeview.SearchJobs(r.Context(), rd.searching(f.Cursor), f, search)
}

// pipelineList holds one page of the pipeline list.
type pipelineList struct {
	*filters
	Pipelines []pipelineRow
	Next      string
	Later     bool
	Until     *time.Time // if the search stopped early, the time that it reached; otherwise nil
	Statuses  []job.Status
}

// pipelineRow is a pipeline and its progress in steps.
type pipelineRow struct {
	job.Pipeline
	At, Steps int // the current step, counted from 1, and the number of known steps
}

// showPipelines lists pipelines, newest first.
func showPipelines(rd *reader, p *page, r *http.Request) error {
	l := pipelineList{filters: filtersOf(r, "pipelines"), Later: r.URL.Query().Get("cursor") != "",
		Statuses: job.Statuses()}
	filter, err := pipelineFilter(l.filters, p.Now)
	if err != nil {
		return err
	}
	filter.Owner = p.Owner(access.JobsRead)
	found, err := storeview.Pipelines(r.Context(), rd.searching(filter.Cursor), filter)
	for _, pipeline := range found.Pipelines {
		l.Pipelines = append(l.Pipelines, pipelineRow{pipeline, pipeline.Step + 1, pipeline.Step + 1 + len(job.Following(pipeline.Planned))})
	}
	l.Next = l.From(found.Cursor)
	if !found.Searched.IsZero() {
		l.Until = &found.Searched
	}
	p.Title, p.Data = "Pipelines", l
	if p.Still = l.Later; !l.Later {
		p.Live = "events/stream"
	}
	return err
}

// auditList holds one page of the audit log.
type auditList struct {
	*filters
	Rows  []admin.AuditRow
	Next  string
	Later bool
}

// showAudit lists the audit entries, newest first.
func showAudit(rd *reader, p *page, r *http.Request) error {
	l := auditList{filters: filtersOf(r, "audit")}
	filter := admin.AuditFilter{Actor: l.Get("actor"), Action: l.Get("action"), Target: l.Get("target"), Limit: perPage}
	at, err := l.begins()
	if err != nil {
		return err
	}
	if at != "" {
		if filter.Before, err = text.ParseJobID(at); err != nil {
			return err
		}
		l.Later = true
	}
	rows, err := admin.AuditTrail(r.Context(), rd.o.Store, filter)
	if len(rows) == perPage {
		l.Next = l.From(strconv.FormatInt(rows[len(rows)-1].ID, 10))
	}
	l.Rows = rows
	p.Title, p.Data, p.Still = "Audit", l, l.Later
	return err
}
