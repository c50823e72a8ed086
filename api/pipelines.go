package api

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

var pipelineRoutes = []Route{
	{http.MethodGet, "/pipelines", access.JobsRead, "List pipelines, newest first", (*server).pipelines},
	{http.MethodGet, "/pipelines/:id", access.JobsRead, "Show a pipeline with its jobs and what became of their branches", (*server).pipeline},
	{http.MethodPost, "/pipelines/:id/abort", access.JobsCancel, "Cancel all of a pipeline that has not ended", (*server).abort},
	{http.MethodPost, "/pipelines/:id/retry", access.JobsRetry, "Go on with a pipeline from the step that failed", (*server).retryPipeline},
}

func (s *server) pipelines(c echo.Context) error {
	filter, err := pipelineFilterOf(c)
	if err != nil {
		return err
	}
	filter.Owner = caller(c).Owner(access.JobsRead)
	page, err := s.lists.Pipelines(c.Request().Context(), filter)
	if err != nil {
		return err
	}
	shown, err := s.present(c, page.Pipelines)
	body := map[string]any{"pipelines": shown, "next_cursor": cursor.Sealed("pipelines", page.Cursor)}
	if !page.Searched.IsZero() {
		body["searched_to"] = page.Searched
	}
	return answer(c, body, err)
}

// pipelineFilterOf reads the filters of a list of pipelines.
func pipelineFilterOf(c echo.Context) (f store.PipelineFilter, err error) {
	err = eachFilter(c, func(name, value string, values []string) (err error) {
		switch name {
		case "status":
			f.Statuses, err = ParseStatuses(values)
		case "name":
			f.Name, err = storable(value)
		case "since":
			f.Since, err = ParseSince(value, time.Now())
		case "limit":
			f.Limit, err = parseLimit(value)
		case "cursor":
			f.Cursor, err = cursor.Opened("pipelines", value)
		default:
			err = errNoFilter
		}
		return err
	})
	return f, err
}

// ParseStatuses reads statuses of pipelines, each value one or several separated by commas.
func ParseStatuses(values []string) (list []job.Status, err error) {
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		if !slices.Contains(job.Statuses(), job.Status(name)) {
			return nil, fmt.Errorf("no status %q: want some of %v", name, job.Statuses())
		}
		list = append(list, job.Status(name))
	}
	return list, nil
}

// shownBranches is how many branches of each fan-out are shown unless a request asks for others, mostBranches how many it may ask for.
const (
	shownBranches = 5
	mostBranches  = 1000
)

func (s *server) pipeline(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	branches := shownBranches
	if text := c.QueryParam("branches"); text != "" {
		if branches, err = strconv.Atoi(text); err != nil || branches < 0 || branches > mostBranches {
			return invalid("branches %q: want 0 to %d", text, mostBranches)
		}
	}
	tree, err := readTree(c.Request().Context(), s.r, s.lists, id, branches)
	if err != nil {
		return err
	}
	shown, err := s.present(c, tree)
	return answer(c, shown, err)
}

func (s *server) abort(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	ids, err := s.r.AbortPipeline(c.Request().Context(), id, caller(c).Name)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"pipeline": idText(id), "aborted": idTexts(ids)})
}

func (s *server) retryPipeline(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	var body again
	if err := optional(c, &body); err != nil {
		return err
	}
	if body.Args != nil { // they are those of its last job
		p, err := s.r.GetPipeline(c.Request().Context(), id)
		if err == nil {
			err = s.mayChange(c, p.LastJob)
		}
		if err != nil {
			return err
		}
	}
	ids, err := s.r.RetryPipeline(c.Request().Context(), id, caller(c).Name, body.otherArgs())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, map[string]any{"pipeline": idText(id), "retried": idTexts(ids)})
}
