package api

import (
	"context"
	"net/http"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

var jobRoutes = []Route{
	{Method: http.MethodGet, Path: "/jobs", Needs: access.JobsRead, scope: ownJobs, Summary: "List jobs, newest first",
		query: []string{"state", "kind", "lane", "subject", "pipeline", "parent", "current", "since", "children", "reason", "error_class", "error_code", "search", "limit", "cursor"},
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
		return nil, response.Invalid("%s", err)
	}
	allowed, _ := c.caller.Can(access.JobsArgs)
	search, filter, err = search.For(filter, allowed, c.caller.Owner(access.JobsArgs))
	if err != nil {
		return nil, response.Forbidden("%s", err)
	}
	if err := c.secrets.Searched(c.Request(), c.caller, search); err != nil {
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
		return nil, response.Invalid("want the parameters kind and subject")
	}
	found, err := storeview.Current(c.ctx(), c.lists, kind, subject, c.caller.Owner(access.JobsRead))
	if err != nil {
		return nil, err
	}
	inside.Of(c.r).Pod.NameEngine(c.ctx(), &found)
	return c.present(found)
}

func showJob(c *call, id int64) (any, error) {
	found, err := c.r.Job(c.ctx(), id)
	if err != nil {
		return nil, err
	}
	inside.Of(c.r).Pod.NameEngine(c.ctx(), &found)
	return c.present(found)
}

// listBlockers returns the reasons why a job is not running. If the caller may see only its own jobs, the response does not name the
// blocking job, because that job may belong to another principal.
func listBlockers(c *call, id int64) (any, error) {
	if _, err := c.r.Job(c.ctx(), id); err != nil {
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
	if _, err := c.r.Job(c.ctx(), id); err != nil {
		return nil, err
	}
	found, err := storeview.JobEvents(c.ctx(), c.lists, id, after, limit)
	return eventsPage(found, limit), err
}
