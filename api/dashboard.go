package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/ui"
)

// mountDashboard puts the dashboard at /ui/ below g.
func (s *server) mountDashboard(g *echo.Group) {
	pages := ui.New(ui.Options{Store: s.r.Store()})
	g.GET("/ui", func(c echo.Context) error {
		// Relative, for the prefix may be one that only a proxy in front of us knows.
		c.Response().Header().Set("Location", "ui/")
		return c.NoContent(http.StatusMovedPermanently)
	})
	g.GET("/ui/*", func(c echo.Context) error {
		request := c.Request()
		if err := s.guard(request); err != nil {
			HandleError(err, c)
			return nil
		}
		below := request.Clone(request.Context())
		below.URL.Path, below.URL.RawPath = "/"+c.Param("*"), ""
		pages.ServeHTTP(c.Response(), below)
		return nil
	})
}
