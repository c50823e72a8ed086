package api

import (
	"errors"
	"net/http"
	"time"

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
		query: []string{"dry_run", "move_to"}, out: of[job.LaneChanged](), do: inLane(deleteLane)},
	{Method: http.MethodPost, Path: "/admin/workers/lanes/:name/engine", Needs: access.WorkersManage, Summary: "Wait until a lane has moved to its next engine",
		query: []string{"wait"}, out: of[job.LaneMove](), do: inLane(waits(func(c *call, wait time.Duration) (job.LaneMove, error) {
			return c.admin().ContinueLaneMove(c.ctx(), c.Param("name"), wait)
		}))},
	{Method: http.MethodPost, Path: "/admin/workers/lanes/:name/drain", Needs: access.WorkersManage, Summary: "Drain a lane: start no jobs in it until it is undrained",
		query: []string{"wait"}, out: of[job.DrainResult](), do: inLane(waits(func(c *call, wait time.Duration) (job.DrainResult, error) {
			return c.admin().DrainLane(c.ctx(), c.Param("name"), wait)
		}))},
	{Method: http.MethodPost, Path: "/admin/workers/lanes/:name/undrain", Needs: access.WorkersManage, Summary: "Undrain a lane",
		out: of[changed](), do: inLane(func(c *call) (any, error) { return toggleOne(c, c.Param("name"), c.admin().UndrainLane) })},
}

func listLanes(c *call) (any, error) {
	found, err := storeview.Lanes(c.ctx(), c.lists)
	inside.Of(c.r).Pod.AddEngineUse(c.ctx(), found)
	return map[string]any{"lanes": orEmpty(found)}, err
}

// setLane returns a handler that changes a lane. The handler first applies adjust to the requested change. For a PUT request, adjust sets
// missing settings to their defaults.
func setLane(adjust func(job.LaneChange) job.LaneChange) handler {
	return inLane(func(c *call) (any, error) {
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
		return c.admin().SetLane(c.ctx(), c.Param("name"), change)
	})
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
	return c.admin().DeleteLane(c.ctx(), c.Param("name"), body.MoveTo, dry)
}

// inLane turns the error for an unknown lane into a 404, because the lane is the resource named in the path.
func inLane(do handler) handler {
	return func(c *call) (any, error) {
		v, err := do(c)
		if errors.Is(err, job.ErrUnknownLane) {
			err = &problem{Status: http.StatusNotFound, Code: "not_found", Message: "no such lane", Detail: err.Error(), Err: err}
		}
		return v, err
	}
}

// podRoutes lists the routes for pods and for the queue state.
var podRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/pods", Needs: access.WorkersView, Summary: "List pods",
		query: []string{"all"}, out: object("pods", listOf(of[job.Pod]())), do: listPods},
	{Method: http.MethodPost, Path: "/admin/workers/pods/:id/drain", Needs: access.WorkersManage, Summary: "Drain a pod: start no jobs on it until it is undrained",
		query: []string{"wait"}, out: of[job.DrainResult](), do: waits(func(c *call, wait time.Duration) (job.DrainResult, error) {
			return c.admin().DrainPod(c.ctx(), c.Param("id"), wait)
		})},
	{Method: http.MethodPost, Path: "/admin/workers/pods/:id/undrain", Needs: access.WorkersManage, Summary: "Undrain a pod",
		out: of[changed](), do: func(c *call) (any, error) { return toggleOne(c, c.Param("id"), c.admin().UndrainPod) }},
	{Method: http.MethodPost, Path: "/admin/workers/freeze", Needs: access.WorkersManage, Summary: "Freeze the queue for maintenance: no job starts",
		query: []string{"wait"}, out: of[job.DrainResult](), do: waits(func(c *call, wait time.Duration) (job.DrainResult, error) {
			return c.admin().Freeze(c.ctx(), wait)
		})},
	{Method: http.MethodPost, Path: "/admin/workers/unfreeze", Needs: access.WorkersManage, Summary: "End a freeze; drained lanes and pods stay drained",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.admin().Unfreeze) }},
	{Method: http.MethodPost, Path: "/admin/workers/pause", Needs: access.WorkersManage, Summary: "Pause the queue: no job starts",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.admin().Pause) }},
	{Method: http.MethodPost, Path: "/admin/workers/resume", Needs: access.WorkersManage, Summary: "End a pause; a frozen queue stays frozen",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.admin().Resume) }},
	{Method: http.MethodGet, Path: "/admin/workers/status", Needs: access.WorkersView, Summary: "Show the queue state, lanes, pods and running jobs",
		out: of[job.Fleet](), do: func(c *call) (any, error) { return c.admin().Status(c.ctx()) }},
}

var healthRoutes = []Route{
	{Method: http.MethodGet, Path: "/healthz", Needs: access.Nothing, Summary: "Liveness: the process responds; needs no database",
		out: object("status", textual, "pod_id", textual), do: health},
	{Method: http.MethodGet, Path: "/readyz", Needs: access.Nothing, Summary: "Readiness: whether this pod accepts work, and why not",
		out:      object("ready", yesNo, "reasons", listOf(textual), "running", whole),
		statuses: []int{http.StatusOK, http.StatusServiceUnavailable}, do: ready},
}

func listPods(c *call) (any, error) {
	closed, err := boolParam(c, "all")
	if err != nil {
		return nil, err
	}
	found, err := storeview.Pods(c.ctx(), c.lists, closed)
	return map[string]any{"pods": orEmpty(found)}, err
}

// health responds as long as the process is running. It does not query the database, so that a database outage does not restart the pods.
func health(c *call) (any, error) {
	return map[string]string{"status": "ok", "pod_id": c.r.PodID()}, nil
}

// ready reports whether this pod may take work.
func ready(c *call) (any, error) {
	ready, reasons := c.r.Ready()
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	return reply{status, map[string]any{"ready": ready, "reasons": orEmpty(reasons), "running": c.r.Running()}}, nil
}
