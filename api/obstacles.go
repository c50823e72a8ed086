package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// obstacles says why a job does not run. Who may only see jobs of his own is not told which other is in its way.
func (s *server) obstacles(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	if _, err := s.r.Get(c.Request().Context(), id); err != nil {
		return err
	}
	found, err := s.lists.Obstacles(c.Request().Context(), id, s.lists.BoardSlots)
	if err != nil {
		return err
	}
	list := append([]job.Obstacle{}, found...)
	if caller(c).Owner(access.JobsRead) != "" {
		for i := range list {
			list[i].JobID = nil
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"obstacles": list})
}
