package api

import (
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
)

// strict lets a route take those parameters of the query that it is described with, and refuse all others: what is misspelt would be
// passed over, and the answer taken for what was asked. Routes that are open to everybody pass them over all the same: a prober, or a
// page that leads to the login, may add what it likes.
func strict(to Route) Route {
	if to.Needs == access.Nothing {
		return to
	}
	known, do := shapes[to.Method+" "+to.Path].query, to.do
	to.do = func(s *server, c echo.Context) error {
		for name := range c.QueryParams() {
			if !slices.Contains(known, name) {
				return invalid("parameter %s: there is no such one", name)
			}
		}
		return do(s, c)
	}
	return to
}
