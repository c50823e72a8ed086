package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/runner"
)

// LetThrough is the status that routes mounted by [MountDoors] return for admitted requests.
const LetThrough = http.StatusTeapot

// MountDoors mounts all routes with handlers that do nothing, so that a test can check who is admitted.
func MountDoors(g *echo.Group, r *runner.Runner, o Options) {
	doors := Routes()
	for i := range doors {
		doors[i].do = func(c *call) (any, error) { return nil, c.NoContent(LetThrough) }
	}
	mount(g, r, o, doors)
}

// Scoped reports whether a route's handler itself limits callers to their own jobs. Such routes have no job ID in their path.
func Scoped(route Route) bool { return route.scope == ownJobs }

// Queries returns the query parameters documented for a route.
func Queries(route Route) []string { return route.query }
