package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner/admin"
)

var jobRoutes = []Route{
	{Method: http.MethodGet, Path: "/jobs", Needs: access.JobsRead, scope: ownJobs, Summary: "List jobs, newest first",
		query: []string{"state", "kind", "lane", "subject", "key", "pipeline", "parent", "current", "since", "children", "reason", "error_class", "error_code", "search", "limit", "cursor"},
		out:   page("jobs", component("Job")), do: listJobs},
	{Method: http.MethodGet, Path: "/jobs/current", Needs: access.JobsRead, scope: ownJobs, Summary: "Show the current run of a kind and subject",
		query: []string{"kind", "subject"}, out: component("Job"), do: showCurrent},
	{Method: http.MethodGet, Path: "/jobs/:id", Needs: access.JobsRead, scope: jobInPath, Summary: "Show a job",
		out: component("Job"), do: onJob(showJob)},
	{Method: http.MethodGet, Path: "/jobs/:id/blockers", Needs: access.JobsRead, scope: jobInPath, Summary: "Show why a job does not run",
		out: object("blockers", listOf(of[job.Blocker]())), do: onJob(listBlockers)},
	{Method: http.MethodGet, Path: "/jobs/:id/events", Needs: access.JobsRead, scope: jobInPath, Summary: "List the events of a job",
		query: []string{"after", "limit"}, out: page("events", component("Event")), do: onJob(listJobEvents)},
}

func listJobs(c *call) (any, error) {
	filter, err := filterOf(c)
	if err != nil {
		return nil, err
	}
	filter.Owner = c.caller.Owner(access.JobsRead)
	search, err := storeview.ParseSearch(c.QueryParam("search"))
	if err != nil {
		return nil, invalid("%s", err)
	}
	allowed, _ := c.caller.Can(access.JobsArgs)
	search, filter, err = search.For(filter, allowed, c.caller.Owner(access.JobsArgs))
	if err != nil {
		return nil, forbidden("%s", err)
	}
	if err := c.secrets.searched(c.Request(), c.caller, search); err != nil {
		return nil, err
	}
	found, err := storeview.SearchJobs(c.ctx(), c.lists, filter, search)
	if err != nil {
		return nil, err
	}
	return c.presentPage("jobs", found.Jobs, found.Cursor, found.Searched)
}

// filterOf parses the filters of a job list.
func filterOf(c *call) (f job.Filter, err error) {
	now, err := c.now(c.QueryParam("since"))
	if err != nil {
		return f, err
	}
	err = eachFilter(c, func(name, value string, values []string) (err error) {
		switch name {
		case "state":
			f.States, err = text.ParseStates(values)
		case "kind":
			f.Kind = value
		case "lane":
			f.Lane = value
		case "subject":
			f.Subject = value
		case "key":
			f.Key = value
		case "pipeline":
			f.Pipeline, err = text.ParseID(value)
		case "parent":
			f.Parent, err = text.ParseID(value)
		case "current":
			var yes *bool
			if yes, err = text.ParseBool(value); err == nil {
				f.Current = *yes
			}
		case "since":
			f.Since, err = text.ParseSince(value, now)
		case "children":
			f.Children, err = text.ParseBool(value)
		case "reason":
			f.Reason = job.Reason(value)
			err = f.Validate()
		case "error_class":
			f.ErrorClass = job.ErrorClass(value)
			err = f.Validate()
		case "error_code":
			f.ErrorCode = value
			err = f.Validate()
		case "limit":
			f.Limit, err = text.ParseLimit(value)
		case "cursor":
			f.Cursor, err = text.DecodeCursor("jobs", value)
		}
		return err
	})
	return f, err
}

// showCurrent returns the current job for a kind and subject.
func showCurrent(c *call) (any, error) {
	kind, subject := c.QueryParam("kind"), c.QueryParam("subject")
	if kind == "" || subject == "" {
		return nil, invalid("want the parameters kind and subject")
	}
	found, err := storeview.Current(c.ctx(), c.lists, kind, subject, c.caller.Owner(access.JobsRead))
	if err != nil {
		return nil, err
	}
	inside.Of(c.r).Pod.NameEngine(c.ctx(), &found)
	return c.present(found)
}

func showJob(c *call, id int64) (any, error) {
	found, err := c.r.GetJob(c.ctx(), id)
	if err != nil {
		return nil, err
	}
	inside.Of(c.r).Pod.NameEngine(c.ctx(), &found)
	return c.present(found)
}

// listBlockers returns the reasons why a job is not running. If the caller may see only its own jobs, the response does not name the
// blocking job, because that job may belong to another principal.
func listBlockers(c *call, id int64) (any, error) {
	if _, err := c.r.GetJob(c.ctx(), id); err != nil {
		return nil, err
	}
	found, err := storeview.Blockers(c.ctx(), c.lists, id, func(ctx context.Context) ([]storeview.BoardSlots, error) { return storeview.SlotsInUse(ctx, c.lists) })
	if c.caller.Owner(access.JobsRead) != "" {
		for i := range found {
			found[i].JobID = nil
		}
	}
	return map[string]any{"blockers": orEmpty(found)}, err
}

// listJobEvents returns a job's events after a cursor, oldest first.
func listJobEvents(c *call, id int64) (any, error) {
	limit, err := limitOf(c, defaultEvents)
	if err != nil {
		return nil, err
	}
	after := 0
	if text := c.QueryParam("after"); text != "" {
		if after, err = storeview.EventNo(text); err != nil {
			return nil, err
		}
	}
	if _, err := c.r.GetJob(c.ctx(), id); err != nil {
		return nil, err
	}
	found, err := storeview.JobEvents(c.ctx(), c.lists, id, after, limit)
	return eventsPage(found, limit), err
}

var historyRoutes = []Route{
	{Method: http.MethodGet, Path: "/events", Needs: access.JobsRead, Summary: "List the events of all jobs in transaction order, after a cursor",
		query: []string{"after", "limit"}, out: page("events", component("Event")),
		do: func(c *call) (any, error) { return listEvents(c, 0) }},
	{Method: http.MethodGet, Path: "/pipelines/:id/events", Needs: access.JobsRead, scope: jobInPath,
		Summary: "List the events of a pipeline in transaction order, after a cursor",
		query:   []string{"after", "limit"}, out: page("events", component("Event")), do: onJob(listPipelineEvents)},
}

// defaultEvents is the default number of events on a page.
const defaultEvents = 1000

func listPipelineEvents(c *call, id int64) (any, error) {
	if _, err := c.r.GetJob(c.ctx(), id); err != nil {
		return nil, err
	}
	return listEvents(c, id)
}

// listEvents returns events up to the horizon, below which no new event can appear, so a client that continues from the last cursor misses
// none. Pipeline 0 means all pipelines.
func listEvents(c *call, pipeline int64) (any, error) {
	limit, err := limitOf(c, defaultEvents)
	if err != nil {
		return nil, err
	}
	found, err := storeview.Events(c.ctx(), c.lists, pipeline, c.QueryParam("after"), limit)
	return eventsPage(found, limit), err
}

// eventsPage returns a page of events. It has a next cursor only if the page is full; otherwise, clients continue from the last event.
func eventsPage(list []job.Event, limit int) map[string]any {
	return pageOf("events", list, limit, func(last job.Event) string { return last.Cursor })
}

var pipelineRoutes = []Route{
	{Method: http.MethodGet, Path: "/pipelines", Needs: access.JobsRead, scope: ownJobs, Summary: "List pipelines, newest first",
		query: []string{"status", "name", "since", "limit", "cursor"}, out: page("pipelines", of[job.Pipeline]()), do: listPipelines},
	{Method: http.MethodGet, Path: "/pipelines/:id", Needs: access.JobsRead, scope: jobInPath, Summary: "Show a pipeline with its jobs and their fan-outs",
		query: []string{"branches"}, do: onJob(showPipeline)},
	{Method: http.MethodPost, Path: "/pipelines/:id/cancel", Needs: access.JobsCancel, scope: jobInPath, Summary: "Cancel all unfinished jobs of a pipeline",
		do: onJob(cancelPipeline)},
	{Method: http.MethodPost, Path: "/pipelines/:id/retry", Needs: access.JobsRetry, scope: jobInPath, Summary: "Retry a pipeline from the step that failed",
		in: again{}, optional: true, statuses: []int{http.StatusAccepted}, do: onJob(retryPipeline)},
	{Method: http.MethodPost, Path: "/pipelines/:id/children/retry", Needs: access.JobsRetry, scope: jobInPath, Summary: "Retry the failed children of a pipeline",
		out: of[childrenRetried](), statuses: []int{http.StatusAccepted}, do: onJob(retryChildren)},
}

// Tree is the response to GET /pipelines/:id.
type (
	Tree    = job.Tree
	TreeJob = job.TreeJob
)

func listPipelines(c *call) (any, error) {
	filter, err := pipelineFilterOf(c)
	if err != nil {
		return nil, err
	}
	filter.Owner = c.caller.Owner(access.JobsRead)
	found, err := storeview.Pipelines(c.ctx(), c.lists, filter)
	if err != nil {
		return nil, err
	}
	return c.presentPage("pipelines", found.Pipelines, found.Cursor, found.Searched)
}

// pipelineFilterOf parses the filters of a pipeline list.
func pipelineFilterOf(c *call) (f storeview.PipelineFilter, err error) {
	now, err := c.now(c.QueryParam("since"))
	if err != nil {
		return f, err
	}
	err = eachFilter(c, func(name, value string, values []string) (err error) {
		switch name {
		case "status":
			f.Statuses, err = text.ParseStatuses(values)
		case "name":
			f.Name = value
		case "since":
			f.Since, err = text.ParseSince(value, now)
		case "limit":
			f.Limit, err = text.ParseLimit(value)
		case "cursor":
			f.Cursor, err = text.DecodeCursor("pipelines", value)
		}
		return err
	})
	return f, err
}

// defaultBranches is the default number of children shown for each fan-out. maxBranches is the maximum.
const (
	defaultBranches = 5
	maxBranches     = 1000
)

func showPipeline(c *call, id int64) (any, error) {
	branches := defaultBranches
	if text := c.QueryParam("branches"); text != "" {
		var err error
		if branches, err = strconv.Atoi(text); err != nil || branches < 0 || branches > maxBranches {
			return nil, invalid("branches %q: want 0 to %d", text, maxBranches)
		}
	}
	tree, err := storeview.ReadTree(c.ctx(), c.lists, id, storeview.TreeLimits{Children: branches})
	if err != nil {
		return nil, err
	}
	return c.present(tree)
}

func cancelPipeline(c *call, id int64) (any, error) {
	ids, err := c.admin().CancelPipeline(c.ctx(), id)
	return map[string]any{"pipeline": idText(id), "cancelled": idTexts(ids)}, err
}

func retryPipeline(c *call, id int64) (any, error) {
	body, err := readOptional[again](c)
	if err == nil && body.Args != nil { // new arguments apply to the last job
		p, missing := c.admin().Pipeline(c.ctx(), id)
		if err = missing; err == nil {
			err = mayChange(c, p.LastJob)
		}
	}
	if err != nil {
		return nil, err
	}
	ids, err := c.admin().RetryPipeline(c.ctx(), id, body.otherArgs())
	return map[string]any{"pipeline": idText(id), "retried": idTexts(ids)}, err
}

// childrenRetried is the response to a request to retry failed children.
type childrenRetried struct {
	Pipeline int64 `json:"pipeline,string"`
	Retried  int   `json:"retried"`
	Skipped  int   `json:"skipped"` // children that could not be retried
	More     bool  `json:"more"`    // more children have failed; repeat the request
}

// retryChildren retries a partial or running pipeline's failed children. If the fan-out has already ended, only the children run again, not
// the join.
func retryChildren(c *call, id int64) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	p, err := c.admin().Pipeline(c.ctx(), id)
	if err != nil {
		return nil, err
	}
	var did admin.BulkResult
	if p.Status == job.PipelinePartial || p.Status == job.PipelineRunning { // in any other state, the failed jobs include the failed step
		did, err = c.admin().RetryMany(c.ctx(), job.Filter{Pipeline: id, States: []job.State{job.Failed}}, false)
	}
	if err == nil && did.Matched == 0 {
		err = fmt.Errorf("retry the children of pipeline %d, status %s: %w", id, p.Status, job.ErrNotFailed)
	}
	return childrenRetried{Pipeline: id, Retried: did.Done, Skipped: did.Skipped, More: did.More}, err
}
