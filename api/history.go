package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

var historyRoutes = []Route{
	{http.MethodGet, "/events", access.JobsRead, "List the history of everything in the order of the commits, after a cursor", (*server).history},
	{http.MethodGet, "/pipelines/:id/events", access.JobsRead, "List the history of a pipeline in the order of the commits, after a cursor", (*server).history},
}

// history answers with events below the horizon under which none can still appear: whoever goes on from the last cursor skips none.
func (s *server) history(c echo.Context) error {
	pipeline, limit := int64(0), 1000
	var err error
	if c.Param("id") != "" {
		if pipeline, err = idOf(c); err != nil {
			return err
		}
		if _, err := s.r.Get(c.Request().Context(), pipeline); err != nil {
			return err
		}
	}
	if text := c.QueryParam("limit"); text != "" {
		if limit, err = parseLimit(text); err != nil {
			return invalid("limit: %s", err)
		}
	}
	list, err := s.lists.Events(c.Request().Context(), pipeline, c.QueryParam("after"), limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, eventsPage(list, limit))
}

// eventsPage is a page of events; without a next cursor there are no more for now.
func eventsPage(list []job.Event, limit int) map[string]any {
	next := ""
	if len(list) == limit {
		next = list[len(list)-1].Cursor
	}
	if list == nil {
		list = []job.Event{}
	}
	return map[string]any{"events": list, "next_cursor": next}
}
