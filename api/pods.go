package api

import (
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// podRoutes lists the routes for pods and for the queue state.
var podRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/pods", Needs: access.WorkersView, Summary: "List pods",
		query: []string{"all"}, out: object("pods", listOf(of[job.Pod]())), do: listPods},
	{Method: http.MethodPost, Path: "/admin/workers/pods/:id/drain", Needs: access.WorkersManage, Summary: "Drain a pod: start no jobs on it until it is resumed",
		query: []string{"wait"}, out: of[job.Quiet](), do: drainPod},
	{Method: http.MethodPost, Path: "/admin/workers/pods/:id/resume", Needs: access.WorkersManage, Summary: "Resume a drained pod",
		out: of[changed](), do: func(c *call) (any, error) { return toggleOne(c, c.Param("id"), c.r.Admin().ResumePod) }},
	{Method: http.MethodPost, Path: "/admin/workers/freeze", Needs: access.WorkersManage, Summary: "Freeze the queue for maintenance: no job starts",
		query: []string{"wait"}, out: of[job.Quiet](), do: freeze},
	{Method: http.MethodPost, Path: "/admin/workers/thaw", Needs: access.WorkersManage, Summary: "End a freeze; drained lanes and pods stay drained",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.r.Admin().Thaw) }},
	{Method: http.MethodPost, Path: "/admin/workers/pause", Needs: access.WorkersManage, Summary: "Pause the queue: no job starts",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.r.Admin().Pause) }},
	{Method: http.MethodPost, Path: "/admin/workers/unpause", Needs: access.WorkersManage, Summary: "End a pause; a frozen queue stays frozen",
		out: of[changed](), do: func(c *call) (any, error) { return toggle(c, c.r.Admin().Unpause) }},
	{Method: http.MethodGet, Path: "/admin/workers/status", Needs: access.WorkersView, Summary: "Show the queue state, lanes, pods and running jobs",
		out: of[job.Fleet](), do: func(c *call) (any, error) { return c.r.Admin().Status(c.ctx()) }},
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

func drainPod(c *call) (any, error) {
	return drain(c, func(wait time.Duration) (job.Quiet, error) {
		return c.r.Admin().DrainPod(c.ctx(), c.Param("id"), wait, c.caller.Name)
	})
}

func freeze(c *call) (any, error) {
	return drain(c, func(wait time.Duration) (job.Quiet, error) { return c.r.Admin().Freeze(c.ctx(), wait, c.caller.Name) })
}

// health responds as long as the process is running. It does not query the database, so that a database outage does not restart the pods.
func health(c *call) (any, error) {
	return map[string]string{"status": "ok", "pod_id": c.r.Boot()}, nil
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
