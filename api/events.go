package api

import (
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

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
	if _, err := c.r.Job(c.ctx(), id); err != nil {
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
