package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
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
	Jobs    []job.JobRow
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

// kindList holds the data for the page that lists kinds.
type kindList struct {
	period
	Order string
	Kinds []job.KindUse
	Total int // the number of all kinds, including those that the page omits
	Ended job.Stats
}

// mostKindsListed is the maximum number of kinds that the page lists.
const mostKindsListed = 200

// kindColumn is a column by which the page can be sorted.
type kindColumn struct {
	Order, Name string
}

// Columns lists the columns by which the page can be sorted.
func (kindList) Columns() []kindColumn {
	return []kindColumn{{"finished", "Finished"}, {"failed", "Failed"}, {"run_p50", "Run p50"}, {"run_p95", "Run p95"}, {"wait_p50", "Wait p50"},
		{"wait_p95", "Wait p95"}, {"running", "Running"}, {"waiting", "Waiting"}}
}

// Link returns the URL of the page with the given period and order.
func (kindList) Link(window, order string) string {
	return "kinds?" + url.Values{"window": {window}, "order": {order}}.Encode()
}

// PerMinute returns the average number of a kind's jobs that finished per minute.
func (l kindList) PerMinute(k job.KindUse) float64 {
	return float64(k.Ended.Finished) / l.Ended.At.Sub(l.Ended.Since).Minutes()
}

// rate formats a number of jobs per minute.
func rate(perMinute float64) string {
	if perMinute < 1 {
		return fmt.Sprintf("%.1f/h", perMinute*60)
	}
	return fmt.Sprintf("%.1f/min", perMinute)
}

// showKinds lists the kinds, slowest first by default.
func showKinds(rd *reader, p *page, r *http.Request) error {
	window, err := storeview.Window(r.URL.Query().Get("window"))
	if err != nil {
		return invalid(err)
	}
	l := kindList{period: period{window}, Order: r.URL.Query().Get("order")}
	if l.Order == "" {
		l.Order = storeview.KindOrders[0]
	}
	found, err := rd.byKind[l.Window.Name].get(r.Context(), fresh(r), func(ctx context.Context) (k kindsRead, err error) {
		k.kinds, k.ended, err = storeview.Kinds(ctx, rd.o.Store, l.Window.Length)
		return k, err
	})
	if err != nil {
		return err
	}
	l.Kinds, l.Total, l.Ended = slices.Clone(found.kinds), len(found.kinds), found.ended
	if err := storeview.SortKinds(l.Kinds, l.Order); err != nil {
		return err
	}
	l.Kinds = l.Kinds[:min(len(l.Kinds), mostKindsListed)]
	p.Title, p.Live, p.Data = "Kinds", "events/stream", l
	return nil
}
