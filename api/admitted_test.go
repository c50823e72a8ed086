package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/runner"
)

// LetThrough is what a route of [MountDoors] answers to whom it lets through.
const LetThrough = http.StatusTeapot

// MountDoors mounts all routes with nothing behind them: who is let through changes nothing.
func MountDoors(g *echo.Group, r *runner.Runner, o Options) {
	doors := Routes()
	for i := range doors {
		doors[i].do = func(c *call) (any, error) { return nil, c.NoContent(LetThrough) }
	}
	mount(g, r, o, doors)
}

// Scoped reports whether a route without a job's id heeds itself that permissions are for own jobs.
func Scoped(route Route) bool { return route.scope == ownJobs }

// Queries are the parameters that a route is described with.
func Queries(route Route) []string { return route.query }
