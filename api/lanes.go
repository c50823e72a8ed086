package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

var laneRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/lanes", Needs: access.WorkersView, Summary: "List lanes with their settings, running and waiting jobs",
		out: object("lanes", listOf(of[job.LaneUse]())), do: listLanes},
	{Method: http.MethodPut, Path: "/admin/workers/lanes/:name", Needs: access.WorkersManage, Summary: "Create or replace a lane",
		query: []string{"dry_run"}, out: of[job.LaneChanged](), do: setLane(job.LaneChange.Whole)},
	{Method: http.MethodPatch, Path: "/admin/workers/lanes/:name", Needs: access.WorkersManage, Summary: "Change some settings of a lane",
		query: []string{"dry_run"}, out: of[job.LaneChanged](),
		do: setLane(func(change job.LaneChange) job.LaneChange { change.Existing = true; return change })},
	{Method: http.MethodDelete, Path: "/admin/workers/lanes/:name", Needs: access.WorkersManage, Summary: "Delete a lane; a lane with jobs needs move_to",
		query: []string{"dry_run", "move_to"}, out: of[job.LaneChanged](), do: deleteLane},
	{Method: http.MethodPost, Path: "/admin/workers/lanes/:name/engine", Needs: access.WorkersManage, Summary: "Wait until a lane has moved to its next engine",
		query: []string{"wait"}, out: of[job.LaneMove](), do: moveLaneOn},
	{Method: http.MethodPost, Path: "/admin/workers/lanes/:name/drain", Needs: access.WorkersManage, Summary: "Drain a lane: start no jobs in it until it is resumed",
		query: []string{"wait"}, out: of[job.Quiet](), do: drainLane},
	{Method: http.MethodPost, Path: "/admin/workers/lanes/:name/resume", Needs: access.WorkersManage, Summary: "Resume a drained lane",
		out: of[changed](), do: resumeLane},
}

func listLanes(c *call) (any, error) {
	found, err := storeview.Lanes(c.ctx(), c.lists)
	inside.Of(c.r).Pod.AddEngineUse(c.ctx(), found)
	return map[string]any{"lanes": orEmpty(found)}, err
}

// setLane returns a handler that changes a lane. The handler first applies adjust to the requested change. For a PUT request, adjust sets
// missing settings to their defaults.
func setLane(adjust func(job.LaneChange) job.LaneChange) handler {
	return func(c *call) (any, error) {
		dry, err := c.dryRun()
		if err != nil {
			return nil, err
		}
		change, err := readBody[job.LaneChange](c)
		if err != nil {
			return nil, err
		}
		change = adjust(change)
		change.DryRun = dry
		done, err := c.r.Admin().SetLane(c.ctx(), c.Param("name"), change, c.caller.Name)
		return done, laneInPath(err)
	}
}

func deleteLane(c *call) (any, error) {
	dry, err := c.dryRun()
	if err != nil {
		return nil, err
	}
	body, err := readOptional[struct {
		MoveTo string `json:"move_to"`
	}](c)
	if err != nil {
		return nil, err
	}
	if to := c.QueryParam("move_to"); to != "" {
		body.MoveTo = to
	}
	done, err := c.r.Admin().DeleteLane(c.ctx(), c.Param("name"), body.MoveTo, c.caller.Name, dry)
	return done, laneInPath(err)
}

func moveLaneOn(c *call) (any, error) {
	move, err := drain(c, func(wait time.Duration) (job.LaneMove, error) {
		return c.r.Admin().MoveOn(c.ctx(), c.Param("name"), wait, c.caller.Name)
	})
	return move, laneInPath(err)
}

func drainLane(c *call) (any, error) {
	quiet, err := drain(c, func(wait time.Duration) (job.Quiet, error) {
		return c.r.Admin().DrainLane(c.ctx(), c.Param("name"), wait, c.caller.Name)
	})
	return quiet, laneInPath(err)
}

func resumeLane(c *call) (any, error) {
	did, err := toggleOne(c, c.Param("name"), c.r.Admin().ResumeLane)
	return did, laneInPath(err)
}

// laneInPath turns an unknown lane into a 404, because the lane is the resource named in the path.
func laneInPath(err error) error {
	if errors.Is(err, job.ErrUnknownLane) {
		return &response.Problem{Status: http.StatusNotFound, Code: "not_found", Message: "no such lane", Detail: err.Error(), Err: err}
	}
	return err
}
