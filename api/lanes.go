package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// laneRoutes are lanes, pods and the gate, as operators steer them.
var laneRoutes = []Route{
	{http.MethodGet, "/admin/workers/lanes", access.WorkersView, "List lanes: how they are set, what runs and waits in them", (*server).lanes},
	{http.MethodPut, "/admin/workers/lanes/:name", access.WorkersManage, "Create a lane, or set all of it", (*server).putLane},
	{http.MethodPatch, "/admin/workers/lanes/:name", access.WorkersManage, "Change some settings of a lane", (*server).patchLane},
	{http.MethodDelete, "/admin/workers/lanes/:name", access.WorkersManage, "Delete a lane; one with jobs only when they may move to another", (*server).deleteLane},
	{http.MethodPost, "/admin/workers/lanes/:name/drain", access.WorkersManage, "Start nothing in a lane until it is resumed", (*server).drainLane},
	{http.MethodPost, "/admin/workers/lanes/:name/resume", access.WorkersManage, "Start jobs in a lane again", (*server).resumeLane},
	{http.MethodGet, "/admin/workers/pods", access.WorkersView, "List pods", (*server).pods},
	{http.MethodPost, "/admin/workers/pods/:id/drain", access.WorkersManage, "Start nothing on a pod until it is resumed", (*server).drainPod},
	{http.MethodPost, "/admin/workers/pods/:id/resume", access.WorkersManage, "Start jobs on a pod again", (*server).resumePod},
	{http.MethodPost, "/admin/workers/freeze", access.WorkersManage, "Close the gate for maintenance: nothing starts anywhere", (*server).freeze},
	{http.MethodPost, "/admin/workers/thaw", access.WorkersManage, "End a freeze; what was drained stays drained", (*server).thaw},
	{http.MethodPost, "/admin/workers/pause", access.WorkersManage, "Close the gate: nothing starts anywhere", (*server).pause},
	{http.MethodPost, "/admin/workers/unpause", access.WorkersManage, "Open the gate; a frozen one stays closed", (*server).unpause},
	{http.MethodGet, "/admin/workers/status", access.WorkersView, "Show the gate, lanes, pods, and what is in their slots", (*server).status},
}

func (s *server) lanes(c echo.Context) error {
	list, err := s.lists.Lanes(c.Request().Context())
	if list == nil {
		list = []store.LaneUse{}
	}
	return answer(c, map[string]any{"lanes": list}, err)
}

func (s *server) putLane(c echo.Context) error { return s.setLane(c, job.LaneChange.Whole) }

func (s *server) patchLane(c echo.Context) error {
	return s.setLane(c, func(change job.LaneChange) job.LaneChange { change.Existing = true; return change })
}

func (s *server) setLane(c echo.Context, as func(job.LaneChange) job.LaneChange) error {
	var change job.LaneChange
	dry, err := dryRun(c)
	if err == nil {
		err = readBody(c, &change, true)
	}
	if err != nil {
		return err
	}
	change = as(change)
	change.DryRun = dry
	done, err := s.r.SetLane(c.Request().Context(), c.Param("name"), change, caller(c).Name)
	return answer(c, done, err)
}

func (s *server) deleteLane(c echo.Context) error {
	var body struct {
		MoveTo string `json:"move_to"`
	}
	dry, err := dryRun(c)
	if err == nil {
		err = readBody(c, &body, false)
	}
	if err != nil {
		return err
	}
	if to := c.QueryParam("move_to"); to != "" {
		body.MoveTo = to
	}
	done, err := s.r.DeleteLane(c.Request().Context(), c.Param("name"), body.MoveTo, caller(c).Name, dry)
	return answer(c, done, err)
}

func (s *server) drainLane(c echo.Context) error {
	wait, err := waitOf(c)
	if err != nil {
		return err
	}
	quiet, err := s.r.DrainLane(c.Request().Context(), c.Param("name"), wait, caller(c).Name)
	return answer(c, quiet, err)
}

func (s *server) resumeLane(c echo.Context) error {
	return s.open(c, func(ctx context.Context, actor string) (bool, error) {
		return s.r.ResumeLane(ctx, c.Param("name"), actor)
	})
}

// changed answers a command that opens something, or closes it without waiting.
type changed struct {
	Changed bool `json:"changed"` // false: it was so before
}

// answer answers a command, or with its error; a lane that does not exist is what the path names.
func answer(c echo.Context, v any, err error) error {
	if errors.Is(err, job.ErrUnknownLane) {
		return &problem{status: http.StatusNotFound, code: "not_found", message: "no such lane", detail: err.Error(), err: err}
	}
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}
