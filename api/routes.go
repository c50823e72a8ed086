package api

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Route is one door of the API: what it is for, and who may use it.
type Route struct {
	Method  string
	Path    string            // below the prefix it is mounted at
	Needs   access.Permission // to use it; [access.Nothing] for everybody
	Summary string            // a sentence, for the OpenAPI document and `trapeze routes`

	do func(s *server, c echo.Context) error
}

// routes are all doors but /metrics and the dashboard's pages: a door that is not listed does not exist, and a test fails for one
// without a permission or a summary. A group a file: who adds a route finds its neighbours there.
var routes = slices.Concat(jobRoutes, steeringRoutes, manyRoutes, pipelineRoutes, historyRoutes, streamRoutes, exportRoutes, podRoutes, laneRoutes,
	scheduleRoutes, retentionRoutes, auditRoutes, roleRoutes, sessionRoutes, documentRoutes)

// Routes lists the API's doors.
func Routes() []Route { return slices.Clone(routes) }

var jobRoutes = []Route{
	{http.MethodPost, "/jobs", access.JobsSubmit, "Submit a job", (*server).submit},
	{http.MethodGet, "/jobs", access.JobsRead, "List jobs, newest first", (*server).list},
	{http.MethodGet, "/jobs/current", access.JobsRead, "Show the current run of a kind and subject", (*server).current},
	{http.MethodGet, "/jobs/:id", access.JobsRead, "Show a job", (*server).job},
	{http.MethodGet, "/jobs/:id/obstacles", access.JobsRead, "Say why a job does not run", (*server).obstacles},
	{http.MethodGet, "/jobs/:id/events", access.JobsRead, "Show the history of a job", (*server).events},
	{http.MethodPost, "/jobs/:id/cancel", access.JobsCancel, "Cancel a job; one that has ended is only shown", (*server).cancel},
	{http.MethodPost, "/admin/workers/jobs/:id/cancel", access.WorkersManage, "Cancel a job", (*server).adminCancel},
	{http.MethodPost, "/admin/workers/jobs/:id/stop", access.WorkersManage, "End a job at once, whatever its handler does", (*server).adminStop},
}

var podRoutes = []Route{
	{http.MethodGet, "/healthz", access.Nothing, "Say that the process is there; asks no database", (*server).health},
	{http.MethodGet, "/readyz", access.Nothing, "Say whether this pod may take work, and why not", (*server).ready},
}
