package api

import (
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

var historyRoutes = []Route{
	{Method: http.MethodGet, Path: "/events", Needs: access.JobsRead, Summary: "List the events of all jobs in commit order, after a cursor",
		query: []string{"after", "limit"}, out: page("events", component("Event")),
		do: func(c *call) (any, error) { return listEvents(c, 0) }},
	{Method: http.MethodGet, Path: "/pipelines/:id/events", Needs: access.JobsRead, scope: jobInPath,
		Summary: "List the events of a pipeline in commit order, after a cursor",
		query:   []string{"after", "limit"}, out: page("events", component("Event")), do: onJob(listPipelineEvents)},
}

// mostEvents is the length of a page of events unless a request asks for another.
const mostEvents = 1000

func listPipelineEvents(c *call, id int64) (any, error) {
	if _, err := c.r.Job(c.ctx(), id); err != nil {
		return nil, err
	}
	return listEvents(c, id)
}

// listEvents answers with events below the horizon under which none can still appear: a client that goes on from the last cursor skips
// none. With 0 for a pipeline they are those of everything.
func listEvents(c *call, pipeline int64) (any, error) {
	limit, err := limitOf(c, mostEvents)
	if err != nil {
		return nil, err
	}
	found, err := storeview.Events(c.ctx(), c.lists, pipeline, c.QueryParam("after"), limit)
	return eventsPage(found, limit), err
}

// eventsPage is a page of events; without a next cursor there are no more for now.
func eventsPage(list []job.Event, limit int) map[string]any {
	return pageOf("events", list, limit, func(last job.Event) string { return last.Cursor })
}
