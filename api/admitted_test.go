package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/runner"
)

// LetThrough is the status with which a route of [MountDoors] answers an admitted request.
const LetThrough = http.StatusTeapot

// MountDoors mounts all routes with handlers that do nothing, so that a test sees only who is admitted.
func MountDoors(g *echo.Group, r *runner.Runner, o Options) {
	doors := Routes()
	for i := range doors {
		doors[i].do = func(c *call) (any, error) { return nil, c.NoContent(LetThrough) }
	}
	mount(g, r, o, doors)
}

// Scoped reports whether a route without a job ID in its path applies the own-jobs scope itself.
func Scoped(route Route) bool { return route.scope == ownJobs }

// Queries returns the query parameters that a route documents.
func Queries(route Route) []string { return route.query }
