package api

import (
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// podRoutes are pods, and the queue state of all lanes.
var podRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/pods", Needs: access.WorkersView, Summary: "List pods",
		query: []string{"all"}, out: object("pods", listOf(of[job.Pod]())), do: listPods},
	{Method: http.MethodPost, Path: "/admin/workers/pods/:id/drain", Needs: access.WorkersManage, Summary: "Start nothing on a pod until it is resumed",
		query: []string{"wait"}, out: of[job.Quiet](), do: drainPod},
	{Method: http.MethodPost, Path: "/admin/workers/pods/:id/resume", Needs: access.WorkersManage, Summary: "Start jobs on a pod again",
		out: of[changed](), do: func(c *call) (any, error) { return toggleOne(c, c.Param("id"), c.r.Admin().ResumePod) }},
	{Method: http.MethodPost, Path: "/admin/workers/freeze", Needs: access.WorkersManage, Summary: "Close the gate for maintenance: nothing starts anywhere",
		query: []string{"wait"}, out: of[job.Quiet](), do: freeze},
	{Method: http.MethodPost, Path: "/admin/workers/thaw", Needs: access.WorkersManage, Summary: "End a freeze; what was drained stays drained",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.r.Admin().Thaw) }},
	{Method: http.MethodPost, Path: "/admin/workers/pause", Needs: access.WorkersManage, Summary: "Close the gate: nothing starts anywhere",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.r.Admin().Pause) }},
	{Method: http.MethodPost, Path: "/admin/workers/unpause", Needs: access.WorkersManage, Summary: "Open the gate; a frozen one stays closed",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.r.Admin().Unpause) }},
	{Method: http.MethodGet, Path: "/admin/workers/status", Needs: access.WorkersView, Summary: "Show the gate, lanes, pods, and what is in their slots",
		out: of[job.Fleet](), do: func(c *call) (any, error) { return c.r.Admin().Status(c.ctx()) }},
}

var healthRoutes = []Route{
	{Method: http.MethodGet, Path: "/healthz", Needs: access.Nothing, Summary: "Say that the process is there; asks no database",
		out: object("status", textual, "boot", textual), do: health},
	{Method: http.MethodGet, Path: "/readyz", Needs: access.Nothing, Summary: "Say whether this pod may take work, and why not",
		out:      object("ready", schema{"type": "boolean"}, "reasons", listOf(textual), "running", schema{"type": "integer"}),
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

func drainPod(c *call) (any, error) {
	return drain(c, func(wait time.Duration) (job.Quiet, error) {
		return c.r.Admin().DrainPod(c.ctx(), c.Param("id"), wait, c.caller.Name)
	})
}

func freeze(c *call) (any, error) {
	return drain(c, func(wait time.Duration) (job.Quiet, error) { return c.r.Admin().Freeze(c.ctx(), wait, c.caller.Name) })
}

// health answers while the process runs. It asks no database: an outage of that must not have the pods restarted.
func health(c *call) (any, error) {
	return map[string]string{"status": "ok", "boot": c.r.Boot()}, nil
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
